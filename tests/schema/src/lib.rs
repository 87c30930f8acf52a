//! The protobuf messages of the protocol crate are generated from `protocol/proto/webpubsub.proto` and stored, so that
//! building the gateway needs no generator. The test here holds them to the schema; with `REGENERATE=1` in the
//! environment it stores them anew. It is a crate of its own because the generator takes long to build.

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn stored_messages_are_those_of_the_schema() {
        let protocol = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol");
        let schema = protox::compile(["webpubsub.proto"], [protocol.join("proto")]).unwrap();
        let out = std::env::temp_dir().join(format!("oncewire-schema-{}", std::process::id()));
        std::fs::create_dir_all(&out).unwrap();
        prost_build::Config::new().bytes(["."]).btree_map(["."]).out_dir(&out).compile_fds(schema).unwrap();
        let generated = std::fs::read_to_string(out.join("azure.webpubsub.rs")).unwrap();
        std::fs::remove_dir_all(out).unwrap();
        let stored = protocol.join("src/wire/protobuf/generated.rs");
        if std::env::var_os("REGENERATE").is_some() {
            std::fs::write(&stored, &generated).unwrap();
        }
        assert!(std::fs::read_to_string(stored).unwrap() == generated, "run this test with REGENERATE=1");
    }
}
