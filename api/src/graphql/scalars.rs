//! Numbers that survive JavaScript: 64 bits, as decimal strings.

use async_graphql::{InputType, InputValueError, InputValueResult, Scalar, ScalarType, Value};

/// A whole number of up to 64 bits, as a decimal string: JavaScript's numbers lose digits beyond 2^53. In arguments a plain
/// number is taken too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BigInt(pub(crate) i64);

/// Credits in minor units (1 credit is 100 units), as a decimal string. In arguments a plain whole number is taken too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credits(pub(crate) i64);

fn parse<T: InputType>(value: Value) -> Result<i64, InputValueError<T>> {
    let number = match &value {
        Value::String(digits) => digits.parse().ok(),
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    number.ok_or_else(|| InputValueError::custom("a whole number of up to 64 bits, as a decimal string"))
}

#[Scalar]
impl ScalarType for BigInt {
    fn parse(value: Value) -> InputValueResult<Self> {
        parse(value).map(Self)
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

#[Scalar]
impl ScalarType for Credits {
    fn parse(value: Value) -> InputValueResult<Self> {
        parse(value).map(Self)
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.to_string())
    }
}
