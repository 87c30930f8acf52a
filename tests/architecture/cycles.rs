//! No two files of a room need each other, neither directly nor through others. A module and those inside it count as one
//! here: it names what they share, and gathers what they make.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

use super::{room, rust_files, shipped};

/// `["edge", "socket", "link"]` of `src/edge/socket/link.rs`.
type Module = Vec<String>;
type Needs = BTreeMap<Module, BTreeSet<Module>>;

/// Something that a file names: where it stands, and what it is called there and here.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    path: Vec<String>,
    alias: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    PathSeparator,
    Comma,
    Star,
    Open,
    Close,
    Other,
}

/// Rooms in which files need each other, each with what they need.
pub(super) fn rooms_with_cycles(below: &str) -> BTreeMap<String, String> {
    let mut rooms = BTreeMap::<String, String>::new();
    for (module, needed) in only_cycles(needs(below)) {
        let text = rooms.entry(module[0].clone()).or_default();
        needed
            .iter()
            .for_each(|other| *text += &format!("{} needs {}\n", module.join("::"), other.join("::")));
    }
    rooms
}

/// Takes away all that leads into no cycle or comes out of none.
fn only_cycles(mut needs: Needs) -> Needs {
    loop {
        let before = needs.len();
        let there: BTreeSet<_> = needs.keys().cloned().collect();
        needs.values_mut().for_each(|needed| needed.retain(|other| there.contains(other)));
        let wanted: BTreeSet<_> = needs.values().flatten().cloned().collect();
        needs.retain(|module, needed| !needed.is_empty() && wanted.contains(module));
        if needs.len() == before {
            return needs;
        }
    }
}

fn needs(below: &str) -> Needs {
    let files = rust_files(below);
    let names: BTreeMap<Module, Vec<(Module, Named)>> = {
        let modules: BTreeSet<Module> = files.iter().map(|(file, _)| module(file, below)).collect();
        let named = files.iter().filter(|(file, _)| !["lib", "main"].contains(&room(file, below).as_str()));
        let named = named.map(|(file, text)| {
            let text: String = shipped(file, text).flat_map(|(_, line)| [line, "\n"]).collect();
            let own = module(file, below);
            let names = names_in(&tokens(text.parse().unwrap()));
            let known = names.into_iter().filter_map(|named| locate(&modules, &own, named)).collect();
            (own, known)
        });
        named.collect()
    };
    let needed = |own: &Module| {
        let others = names[own].iter().map(|(module, named)| origin(&names, module, named));
        let others = others.filter(|other| !own.starts_with(other) && !other.starts_with(own));
        others.cloned().collect()
    };
    names.keys().map(|own| (own.clone(), needed(own))).collect()
}

fn module(file: &str, below: &str) -> Module {
    let path = file.strip_prefix(below).unwrap().strip_suffix(".rs").unwrap();
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').map(str::to_owned).collect()
}

/// The module in which something is named, and what is left of its path; none if it is of another crate.
fn locate(modules: &BTreeSet<Module>, own: &Module, named: Named) -> Option<(Module, Named)> {
    let Named { path, alias } = named;
    let mut base = own.clone();
    let mut rest = path.as_slice();
    match path.first()?.as_str() {
        "crate" => base.clear(),
        "self" | "super" => {}
        child => {
            base.push(child.to_owned());
            if !modules.contains(&base) {
                return None;
            }
            base.pop();
        }
    }
    while let Some((first, behind)) = rest.split_first()
        && ["crate", "self", "super"].contains(&first.as_str())
    {
        if first == "super" {
            base.pop()?;
        }
        rest = behind;
    }
    while let Some((first, behind)) = rest.split_first() {
        base.push(first.clone());
        if !modules.contains(&base) {
            base.pop();
            break;
        }
        rest = behind;
    }
    Some((base, Named { path: rest.to_vec(), alias }))
}

/// The module that something comes from which others may only pass on.
fn origin<'a>(
    names: &'a BTreeMap<Module, Vec<(Module, Named)>>,
    module: &'a Module,
    named: &Named,
) -> &'a Module {
    let passed_on = named.path.first().and_then(|name| {
        let names = names.get(module)?;
        names.iter().find(|(from, passed)| passed.alias == *name && from != module)
    });
    passed_on.map_or(module, |(from, passed)| origin(names, from, passed))
}

fn tokens(stream: TokenStream) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut is_second_colon = false;
    for tree in stream {
        match tree {
            TokenTree::Ident(word) => tokens.push(Token::Word(word.to_string())),
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                if is_second_colon {
                    tokens.push(Token::PathSeparator);
                }
                is_second_colon = !is_second_colon && punct.spacing() == Spacing::Joint;
                continue;
            }
            TokenTree::Punct(punct) => tokens.push(match punct.as_char() {
                ',' => Token::Comma,
                '*' => Token::Star,
                _ => Token::Other,
            }),
            TokenTree::Group(group) => {
                let is_braced = group.delimiter() == Delimiter::Brace;
                tokens.push(if is_braced { Token::Open } else { Token::Other });
                tokens.extend(self::tokens(group.stream()));
                tokens.push(if is_braced { Token::Close } else { Token::Other });
            }
            TokenTree::Literal(_) => tokens.push(Token::Other),
        }
        is_second_colon = false;
    }
    tokens
}

fn names_in(tokens: &[Token]) -> Vec<Named> {
    let mut names = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at = match token {
            Token::Word(word) if word == "use" => use_tree(tokens, at + 1, &[], &mut names),
            Token::Word(word) if ["crate", "super", "self"].contains(&word.as_str()) => {
                let mut path = vec![word.clone()];
                at += 1;
                while let Some([Token::PathSeparator, Token::Word(word)]) = tokens.get(at..at + 2) {
                    path.push(word.clone());
                    at += 2;
                }
                if path.len() > 1 {
                    names.push(Named { path, alias: String::new() });
                }
                at
            }
            _ => at + 1,
        };
    }
    names
}

/// Reads what `use` names, and tells where that ends.
fn use_tree(tokens: &[Token], mut at: usize, prefix: &[String], names: &mut Vec<Named>) -> usize {
    let mut path = prefix.to_vec();
    let mut alias = None;
    loop {
        match tokens.get(at) {
            Some(Token::Word(word)) if word == "as" => {
                if let Some(Token::Word(name)) = tokens.get(at + 1) {
                    alias = Some(name.clone());
                }
                at += 2;
            }
            Some(Token::Word(word)) => {
                if word != "self" || path.is_empty() {
                    path.push(word.clone());
                }
                at += 1;
            }
            Some(Token::PathSeparator | Token::Star) => at += 1,
            Some(Token::Open) => {
                at += 1;
                while !matches!(tokens.get(at), Some(Token::Close) | None) {
                    at = use_tree(tokens, at, &path, names);
                    at += usize::from(tokens.get(at) == Some(&Token::Comma));
                }
                return at + 1;
            }
            _ => {
                let alias = alias.or_else(|| path.last().cloned()).unwrap_or_default();
                names.push(Named { path, alias });
                return at;
            }
        }
    }
}

#[test]
fn all_that_a_file_names_is_found() {
    let text = "pub use a::{b::{self, C as D}, e::*, super::F}; fn g(h: crate::i::J) { k!(\"x\", super::l::M) } // crate::n";
    let found: Vec<_> =
        names_in(&tokens(text.parse().unwrap())).into_iter().map(|named| named.path.join("::")).collect();
    assert_eq!(found, ["a::b", "a::b::C", "a::e", "a::super::F", "crate::i::J", "super::l::M"]);
}

#[test]
fn a_cycle_is_found_and_what_only_leads_to_one_is_not_told() {
    let of = |pairs: &[(&str, &str)]| {
        let mut needs = Needs::new();
        for (module, needed) in pairs {
            needs.entry(vec![(*module).to_owned()]).or_default().insert(vec![(*needed).to_owned()]);
        }
        needs
    };
    let cycle = [("b", "c"), ("c", "d"), ("d", "b")];
    let around = [("a", "b"), ("d", "e"), ("e", "f")];
    assert_eq!(only_cycles(of(&[&cycle[..], &around].concat())), of(&cycle));
    assert_eq!(only_cycles(of(&around)), Needs::new());
}
