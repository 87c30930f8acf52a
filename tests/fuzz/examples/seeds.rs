//! Writes the golden vectors and the stored records of the protocol crate's tests as first inputs of the fuzz targets.
//!
//! `cargo run -p oncewire-fuzz --example seeds -- FOLDER` makes one folder for each target in FOLDER.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a developer's tool: it stops at what it can't do")]

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        panic!("wants the folder to write to");
    };
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol/tests");
    let golden = |name: &str| fs::read_to_string(tests.join("golden").join(name)).unwrap();
    write(&folder.join("json_upstream"), received(&golden("json-upstream.txt"), text));
    write(&folder.join("json_upstream"), refused(&golden("json-upstream-refused.txt")));
    write(&folder.join("json_downstream"), received(&golden("json-downstream.txt"), text));
    write(&folder.join("protobuf_upstream"), received(&golden("protobuf-upstream.txt"), bytes));
    write(&folder.join("protobuf_upstream"), refused(&golden("protobuf-upstream-refused.txt")));
    write(&folder.join("protobuf_downstream"), received(&golden("protobuf-downstream.txt"), bytes));
    write(&folder.join("raw"), [&b"\0text"[..], b"\x01\xff", b"\x02\xff"].map(<[u8]>::to_vec));

    let versions =
        ["v1", "v2"].map(|version| fs::read_dir(tests.join("fixtures/records").join(version)).unwrap());
    let mut paths: Vec<PathBuf> = versions.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let records: Vec<Vec<u8>> = paths.iter().map(|path| bytes(&fs::read_to_string(path).unwrap())).collect();
    let entry = |record: &Vec<u8>| [&(record.len() as u16).to_be_bytes()[..], record].concat();
    write(&folder.join("log"), [[vec![3], records.iter().flat_map(entry).collect()].concat()]);
    let of_each_kind =
        |record: &Vec<u8>| (0..3).map(|kind| [&[kind, 0], &record[..]].concat()).collect::<Vec<_>>();
    write(&folder.join("checkpoint"), records.iter().flat_map(of_each_kind));
    write(&folder.join("record"), records);
    write(&folder.join("hub"), [Vec::new()]);
    write(&folder.join("filter"), [&b"userId in ('a',null) or not ('g' in groups)"[..]].map(<[u8]>::to_vec));
}

/// What stands behind `> `.
fn received(vectors: &str, read: fn(&str) -> Vec<u8>) -> Vec<Vec<u8>> {
    vectors.lines().filter_map(|line| line.strip_prefix("> ")).map(read).collect()
}

/// What stands behind the close code and the kind of frame.
fn refused(vectors: &str) -> Vec<Vec<u8>> {
    let frames = vectors.lines().filter(|line| line.starts_with("100"));
    let frame = |line: &str| match line[5..].split_once(' ')? {
        ("text", content) => Some(text(content)),
        (_, content) => Some(bytes(content)),
    };
    frames.filter_map(frame).collect()
}

fn text(vector: &str) -> Vec<u8> {
    vector.as_bytes().to_vec()
}

/// Hexadecimal digits, with comments in files of records.
fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: String =
        hexadecimal.lines().flat_map(|line| line.split('#').next()).flat_map(str::split_whitespace).collect();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn write(folder: &Path, inputs: impl IntoIterator<Item = Vec<u8>>) {
    fs::create_dir_all(folder).unwrap();
    let first = fs::read_dir(folder).unwrap().count();
    for (number, input) in inputs.into_iter().enumerate() {
        fs::write(folder.join(format!("seed-{:03}", first + number)), input).unwrap();
    }
}
