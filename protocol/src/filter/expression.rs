//! Expressions and their types.

/// What an expression can give. A null may stand for any of the first three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// Text or null.
    String,
    /// A number or null.
    Int,
    /// True or false.
    Bool,
    /// The groups.
    Groups,
    /// Only null.
    Null,
}

impl Type {
    /// As errors name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Int => "int",
            Self::Bool => "bool",
            Self::Groups => "collection",
            Self::Null => "null",
        }
    }
}

/// An expression whose parts have the types that they need.
#[derive(Debug, PartialEq)]
pub enum Expression {
    /// A literal.
    String(String),
    /// A literal.
    Int(i32),
    /// A literal.
    Bool(bool),
    /// The literal `null`.
    Null,
    /// What belongs to the connection.
    Identifier(Identifier),
    /// A function of its arguments.
    Call(Function, Vec<Expression>),
    /// The opposite of a bool.
    Not(Box<Expression>),
    /// Two values compared.
    Compare(Comparison, Box<[Expression; 2]>),
    /// Whether a value equals one of a list.
    InList(Box<Expression>, Vec<Expression>),
    /// Whether a value is one of the groups.
    InGroups(Box<Expression>),
    /// Whether all are true; at least two.
    All(Vec<Expression>),
    /// Whether one is true; at least two.
    Any(Vec<Expression>),
}

/// See [`Expression::Identifier`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identifier {
    /// A string.
    ConnectionId,
    /// A string or null.
    UserId,
    /// A collection of strings.
    Groups,
    /// A string or null.
    Protocol,
}

impl Identifier {
    /// By its name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        Some(match () {
            () if is("connectionId") => Self::ConnectionId,
            () if is("userId") => Self::UserId,
            () if is("groups") => Self::Groups,
            () if is("protocol") => Self::Protocol,
            () => return None,
        })
    }

    /// What it gives.
    pub fn gives(self) -> Type {
        if self == Self::Groups { Type::Groups } else { Type::String }
    }
}

/// See [`Expression::Compare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Comparison {
    /// Equal; null equals null.
    Equal,
    /// Not equal.
    NotEqual,
    /// Greater; false with a null.
    Greater,
    /// Greater or equal; false with a null.
    GreaterOrEqual,
    /// Less; false with a null.
    Less,
    /// Less or equal; false with a null.
    LessOrEqual,
}

impl Comparison {
    /// By its operator.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "eq" => Self::Equal,
            "ne" => Self::NotEqual,
            "gt" => Self::Greater,
            "ge" => Self::GreaterOrEqual,
            "lt" => Self::Less,
            "le" => Self::LessOrEqual,
            _ => return None,
        })
    }

    /// Whether it is for numbers only.
    pub fn orders(self) -> bool {
        !matches!(self, Self::Equal | Self::NotEqual)
    }
}

/// See [`Expression::Call`]; named as in the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Length,
    ToLower,
    ToUpper,
    Trim,
    Substring,
    IndexOf,
    Concat,
    Contains,
    StartsWith,
    EndsWith,
}

/// What an argument may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// A string.
    String,
    /// A string or the groups.
    StringOrGroups,
    /// A number.
    Int,
}

impl Parameter {
    /// Whether it takes this type. Every parameter takes a null.
    pub fn takes(self, actual: Type) -> bool {
        match self {
            Self::String => matches!(actual, Type::String | Type::Null),
            Self::StringOrGroups => matches!(actual, Type::String | Type::Groups | Type::Null),
            Self::Int => matches!(actual, Type::Int | Type::Null),
        }
    }

    /// As errors name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::StringOrGroups => "string or collection",
            Self::Int => "int",
        }
    }
}

impl Function {
    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "length" => Self::Length,
            "tolower" => Self::ToLower,
            "toupper" => Self::ToUpper,
            "trim" => Self::Trim,
            "substring" => Self::Substring,
            "indexof" => Self::IndexOf,
            "concat" => Self::Concat,
            "contains" => Self::Contains,
            "startswith" => Self::StartsWith,
            "endswith" => Self::EndsWith,
            _ => return None,
        })
    }

    /// The parameters, and how many of them have to be given.
    pub fn parameters(self) -> (&'static [Parameter], usize) {
        use Parameter::{Int, String, StringOrGroups};
        match self {
            Self::Length => (&[StringOrGroups], 1),
            Self::ToLower | Self::ToUpper | Self::Trim => (&[String], 1),
            Self::Substring => (&[String, Int, Int], 2),
            Self::IndexOf | Self::Concat | Self::Contains | Self::StartsWith | Self::EndsWith => {
                (&[String, String], 2)
            }
        }
    }

    /// What it gives.
    pub fn gives(self) -> Type {
        match self {
            Self::Length | Self::IndexOf => Type::Int,
            Self::ToLower | Self::ToUpper | Self::Trim | Self::Substring | Self::Concat => Type::String,
            Self::Contains | Self::StartsWith | Self::EndsWith => Type::Bool,
        }
    }
}
