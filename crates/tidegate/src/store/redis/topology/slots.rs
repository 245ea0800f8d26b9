//! Hash slots of a cluster: which slot a key is in, and which server a slot.

use redis::Value;

use super::super::url::Address;

/// How many slots a cluster has.
pub(in super::super) const SLOTS: u16 = 16384;

/// The slot of what is between a key's braces.
pub(in super::super) fn slot_of(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS
}

/// CRC-16/XMODEM, which is what a cluster uses.
const fn crc16(bytes: &[u8]) -> u16 {
    let mut crc: u16 = 0;
    let mut index = 0;
    while index < bytes.len() {
        let table = CRC16[((crc >> 8) as u8 ^ bytes[index]) as usize];
        crc = (crc << 8) ^ table;
        index += 1;
    }
    crc
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte: u16 = 0;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
};

/// Slots `first` to `last` and the primary that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Address,
}

/// Reads the answer to `CLUSTER SLOTS`; `None` if it is none.
pub(super) fn read_ranges(answer: &Value, asked: &Address) -> Option<Vec<Range>> {
    let Value::Array(rows) = answer else { return None };
    rows.iter().map(|row| read_range(row, asked)).collect()
}

fn read_range(row: &Value, asked: &Address) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let host = match host {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::SimpleString(text) => text,
        Value::Nil => "",
        _ => return None,
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
    let (first, last) = (slot(first)?, slot(last)?);
    let primary = Address::reported(host, u16::try_from(*port).ok()?, asked);
    (first <= last).then_some(Range { first, last, primary })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_documentation() {
        // The check value of CRC-16/XMODEM, and slots as `CLUSTER KEYSLOT` tells them.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        let rows = [(&b""[..], 0), (b"foo", 12182), (b"somekey", 11058), (b"user1000", 3443)];
        for (tag, slot) in rows {
            assert_eq!(slot_of(tag), slot, "{tag:?}");
        }
    }

    #[test]
    fn a_map_is_read_or_refused() {
        let asked = Address { host: "seed".into(), port: 1 };
        let row = |first, last, host: Value, port| {
            let node = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".into())]);
            Value::Array(vec![Value::Int(first), Value::Int(last), node])
        };
        let text = |text: &str| Value::BulkString(text.into());
        let good = Value::Array(vec![row(0, 5, text("a"), 7), row(6, 16383, Value::Nil, 8)]);
        let ranges = read_ranges(&good, &asked).expect("good");
        assert_eq!(ranges[0].primary.to_string(), "a:7");
        assert_eq!((ranges[1].first, ranges[1].last), (6, 16383));
        assert_eq!(ranges[1].primary.to_string(), "seed:8");
        let bad = [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            Value::Array(vec![row(5, 4, text("a"), 7)]),
            Value::Array(vec![row(0, 16384, text("a"), 7)]),
            Value::Array(vec![row(-1, 4, text("a"), 7)]),
            Value::Array(vec![row(0, 4, text("a"), 70_000)]),
            Value::Array(vec![row(0, 4, Value::Int(1), 7)]),
        ];
        for answer in bad {
            assert_eq!(read_ranges(&answer, &asked), None, "{answer:?}");
        }
    }
}
