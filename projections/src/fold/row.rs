//! Read rows in memory: how they are declared, kept while events are folded into them, and stored many at once.

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Postgres};
use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::Arc;

/// A column: its name, the type it is carried as, and the type it has.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) carried: &'static str,
    pub(super) stored: &'static str,
}

/// A row of a read table.
pub(super) trait Row: for<'r> FromRow<'r, PgRow> + Send + Unpin {
    /// The table.
    const TABLE: &'static str;
    /// The key that a row is replaced by; `None` where rows are only ever added.
    const REPLACED_BY: Option<&'static str>;
    /// Every column.
    const COLUMNS: &'static [Column];
    /// The statement that stores rows; made once.
    fn store_statement() -> &'static Arc<str>;
    /// One array a column, in the order of `COLUMNS`.
    fn bind<'q>(rows: &[&'q Self], to: Query<'q, Postgres, PgArguments>) -> Query<'q, Postgres, PgArguments>;
}

/// Declares a row: its table, the key it is replaced by, and each column with its type in the table. An array is carried as
/// text: arrays of arrays can not be unpacked row by row.
macro_rules! read_row {
    ($(#[$doc:meta])* $row:ident, $table:literal, $key:expr, { $($column:ident : $type:ty = $carried:literal $(-> $stored:literal)?),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
        pub(super) struct $row { $(pub(super) $column: $type),+ }

        impl crate::fold::row::Row for $row {
            const TABLE: &'static str = $table;
            const REPLACED_BY: Option<&'static str> = $key;
            const COLUMNS: &'static [crate::fold::row::Column] = &[$(crate::fold::row::Column {
                name: stringify!($column),
                carried: $carried,
                stored: crate::fold::row::last(&[$carried $(, $stored)?]),
            }),+];

            fn store_statement() -> &'static std::sync::Arc<str> {
                static STATEMENT: std::sync::LazyLock<std::sync::Arc<str>> =
                    std::sync::LazyLock::new(crate::fold::row::statement::<$row>);
                &STATEMENT
            }

            fn bind<'q>(
                rows: &[&'q Self],
                to: sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>,
            ) -> sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments> {
                to $(.bind(rows.iter().map(|row| &row.$column).collect::<Vec<_>>()))+
            }
        }
    };
}
pub(super) use read_row;

pub(super) const fn last(types: &[&'static str]) -> &'static str {
    types[types.len() - 1]
}

/// Made of names in this crate only.
pub(super) fn statement<R: Row>() -> Arc<str> {
    let list = |each: &dyn Fn(usize, &Column) -> String| {
        R::COLUMNS.iter().enumerate().map(|(index, column)| each(index, column)).collect::<Vec<_>>().join(", ")
    };
    let table = R::TABLE;
    let names = list(&|_, column| column.name.to_owned());
    let values = list(&|_, column| format!("{}::{}", column.name, column.stored));
    let arrays = list(&|index, column| format!("${}::{}[]", index + 1, column.carried));
    let mut text = format!(
        "/* fold.store_{table} */ INSERT INTO {table} ({names}) SELECT {values} FROM unnest({arrays}) AS given ({names})"
    );
    if let Some(key) = R::REPLACED_BY {
        let changes = list(&|_, column| format!("{0} = excluded.{0}", column.name));
        text.push_str(&format!(" ON CONFLICT ({key}) DO UPDATE SET {changes}"));
    }
    text.into()
}

/// The columns of a row as a query lists them.
pub(super) fn columns<R: Row>() -> String {
    R::COLUMNS.iter().map(|it| format!("{}::{}", it.name, it.carried)).collect::<Vec<_>>().join(", ")
}

/// Adds rows and replaces those that are there, in one statement.
pub(super) async fn store<R: Row>(connection: &mut PgConnection, rows: &[&R]) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let statement = sqlx::query(AssertSqlSafe(Arc::clone(R::store_statement())));
    R::bind(rows, statement).execute(connection).await?;
    Ok(())
}

/// Rows of one table by key, and which of them were changed.
pub(super) struct Table<K, R> {
    rows: BTreeMap<K, Slot<R>>,
}

struct Slot<R> {
    row: R,
    changed: bool,
}

impl<K, R> Default for Table<K, R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new() }
    }
}

impl<K: Ord, R> Table<K, R> {
    /// A row that the database has.
    pub(super) fn load(&mut self, key: K, row: R) {
        self.rows.insert(key, Slot { row, changed: false });
    }

    /// A row that is new.
    pub(super) fn add(&mut self, key: K, row: R) {
        self.rows.insert(key, Slot { row, changed: true });
    }

    pub(super) fn get(&self, key: &K) -> Option<&R> {
        self.rows.get(key).map(|slot| &slot.row)
    }

    /// A row that is about to be changed.
    pub(super) fn change(&mut self, key: &K) -> Option<&mut R> {
        self.rows.get_mut(key).map(|slot| {
            slot.changed = true;
            &mut slot.row
        })
    }

    /// The rows in a range of keys.
    pub(super) fn range(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = (&K, &R)> {
        self.rows.range(range).map(|(key, slot)| (key, &slot.row))
    }

    /// What has to be stored, in the order of the keys.
    pub(super) fn changed(&self) -> Vec<&R> {
        self.rows.values().filter(|slot| slot.changed).map(|slot| &slot.row).collect()
    }
}
