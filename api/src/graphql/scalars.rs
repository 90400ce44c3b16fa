//! Values that survive JavaScript: 64-bit numbers as decimal strings, instants as text of one form. `docs/graphql.md` has the rules.

use async_graphql::{InputType, InputValueError, InputValueResult, Scalar, ScalarType, Value};
use chrono::{DateTime, Datelike, SecondsFormat, SubsecRound};
use domain::time::Timestamp;

/// A whole number of up to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BigInt(pub(crate) i64);

/// Credits in minor units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credits(pub(crate) i64);

/// An instant. The database keeps microseconds, and so do answers and arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instant(pub(crate) Timestamp);

fn parse<T: InputType>(value: Value) -> Result<i64, InputValueError<T>> {
    let number = match &value {
        Value::String(digits) => digits.parse().ok(),
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    number.ok_or_else(|| InputValueError::custom("a whole number of up to 64 bits, as a decimal string"))
}

/// A whole number of up to 64 bits, as a decimal string: JavaScript's numbers lose digits beyond 2^53. In arguments a plain
/// whole number is taken too.
#[Scalar]
impl ScalarType for BigInt {
    fn parse(value: Value) -> InputValueResult<Self> {
        parse(value).map(Self)
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// Credits in minor units (1 credit is 100 units), as a decimal string of up to 64 bits. In arguments a plain whole number is
/// taken too.
#[Scalar]
impl ScalarType for Credits {
    fn parse(value: Value) -> InputValueResult<Self> {
        parse(value).map(Self)
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.to_string())
    }
}

/// An instant. Answers are in UTC with six digits of a second, as `2026-01-31T08:15:00.123456Z`. Arguments follow RFC 3339 and
/// name their offset: `Z` or as `+08:00`; digits after the sixth are cut off. Years are from 0001 to 9999.
#[Scalar(name = "DateTime", specified_by_url = "https://www.rfc-editor.org/rfc/rfc3339")]
impl ScalarType for Instant {
    fn parse(value: Value) -> InputValueResult<Self> {
        let instant = match &value {
            Value::String(text) => read_instant(text),
            _ => None,
        };
        let expected = "an instant as 2026-01-31T08:15:00Z or 2026-01-31T16:15:00.123456+08:00 (RFC 3339)";
        instant.map(Self).ok_or_else(|| InputValueError::custom(expected))
    }

    fn to_value(&self) -> Value {
        Value::String(self.0.to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

/// Reads RFC 3339, and nothing that chrono takes beside it: the offset is needed, and a `T` between date and time.
fn read_instant(text: &str) -> Option<Timestamp> {
    let separated = text.len() <= 64 && text.as_bytes().get(10).is_some_and(|it| it.eq_ignore_ascii_case(&b'T'));
    // A leap second is read as the last instant of its minute, which is how the database keeps time.
    let instant = DateTime::parse_from_rfc3339(text).ok().filter(|_| separated)?.to_utc();
    Some(instant.trunc_subsecs(6)).filter(|instant| (1..=9999).contains(&instant.year()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: impl Into<Value>) -> Option<String> {
        let instant = <Instant as ScalarType>::parse(value.into()).ok()?;
        let Value::String(text) = ScalarType::to_value(&instant) else { return None };
        Some(text)
    }

    #[test]
    fn an_instant_is_read_by_one_rule() {
        for (given, instant) in [
            ("2026-01-31T08:15:00Z", "2026-01-31T08:15:00.000000Z"),
            ("2026-01-31t16:15:00.1+08:00", "2026-01-31T08:15:00.100000Z"),
            ("2026-01-31T08:15:00.123456789Z", "2026-01-31T08:15:00.123456Z"),
            ("1969-12-31T23:59:59.9999999-00:30", "1970-01-01T00:29:59.999999Z"),
        ] {
            assert_eq!(read(given).as_deref(), Some(instant), "{given}");
        }
        for bad in [
            "",
            "2026-01-31",
            "2026-01-31T08:15:00",
            "2026-01-31 08:15:00Z",
            "2026-01-31T08:15Z",
            "2026-02-30T08:15:00Z",
            "2026-01-31T24:00:00Z",
            "+10000-01-01T00:00:00Z",
            "0000-01-01T00:00:00Z",
            "0001-01-01T00:00:00+01:00",
            "1769846100",
            " 2026-01-31T08:15:00Z",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(read(1_769_846_100), None);
    }

    #[test]
    fn sixty_four_bits_survive_as_text() {
        for (given, number) in [
            (Value::from("9223372036854775807"), Some(i64::MAX)),
            (Value::from("-9223372036854775808"), Some(i64::MIN)),
            (Value::from(7), Some(7)),
            (Value::from(7.5), None),
            (Value::from("9223372036854775808"), None),
            (Value::from("7 "), None),
            (Value::from("0x7"), None),
            (Value::from(true), None),
        ] {
            assert_eq!(<BigInt as ScalarType>::parse(given.clone()).ok().map(|it| it.0), number, "{given}");
            assert_eq!(<Credits as ScalarType>::parse(given.clone()).ok().map(|it| it.0), number, "{given}");
        }
        assert_eq!(ScalarType::to_value(&BigInt(i64::MAX)), Value::from("9223372036854775807"));
    }
}
