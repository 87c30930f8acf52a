//! Protobuf messages spelled out field by field, in bytes.

/// A field with a length: a string, bytes or an embedded message. Numbers go up to 15.
pub fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    push_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// A field with a number or a boolean.
pub fn integer(number: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![number << 3];
    push_varint(value, &mut bytes);
    bytes
}

/// An embedded message of these fields.
pub fn embedded(number: u8, fields: &[Vec<u8>]) -> Vec<u8> {
    field(number, &fields.concat())
}

fn push_varint(mut value: u64, bytes: &mut Vec<u8>) {
    while value > 0x7F {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
