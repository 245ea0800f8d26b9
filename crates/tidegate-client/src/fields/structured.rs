//! Structured fields (RFC 9651), as far as limits are told by them: a List or a Dictionary
//! of Items with Parameters. Inner lists are read past.
//!
//! The RFC wants it strict: one mistake, and the field is as if it were not there. A reader
//! that mends what it finds would mend it otherwise than the next reader does.

/// A value without its parameters. Kinds that no limit is told by are not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bare {
    Integer(i64),
    String(String),
    Other,
}

impl Bare {
    /// An integer of 0 or more.
    pub fn integer(&self) -> Option<u64> {
        match self {
            Bare::Integer(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

/// A value and its parameters.
#[derive(Clone, Debug)]
pub struct Item {
    pub bare: Bare,
    parameters: Vec<(String, Bare)>,
}

impl Item {
    /// A parameter that is an integer of 0 or more. Given twice, the last counts.
    pub fn integer(&self, key: &str) -> Option<u64> {
        let last = self.parameters.iter().rev().find(|(name, _)| name == key);
        last.and_then(|(_, bare)| bare.integer())
    }
}

/// A List, or `None` where there is a mistake in it.
pub fn list(text: &str) -> Option<Vec<Item>> {
    members(text, Reader::member)
}

/// A Dictionary, or `None` where there is a mistake in it. Of two members of one name the
/// last counts.
pub fn dictionary(text: &str) -> Option<Vec<(String, Item)>> {
    let mut members = members(text, |reader| {
        let key = reader.key()?;
        let item = if reader.eat(b'=') { reader.member()? } else { reader.flag()? };
        Some((key, item))
    })?;
    members.reverse();
    Some(members)
}

fn members<'a, T>(
    text: &'a str,
    mut read: impl FnMut(&mut Reader<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    let mut reader = Reader { rest: text.as_bytes() };
    reader.skip(b" ");
    let mut members = Vec::new();
    while !reader.rest.is_empty() {
        members.push(read(&mut reader)?);
        reader.skip(b" \t");
        if reader.rest.is_empty() {
            break;
        }
        if !reader.eat(b',') {
            return None;
        }
        reader.skip(b" \t");
        if reader.rest.is_empty() {
            return None;
        }
    }
    Some(members)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.rest = &self.rest[1..];
        }
        found
    }

    fn skip(&mut self, blanks: &[u8]) {
        self.take_while(|byte| blanks.contains(&byte));
    }

    fn take_while(&mut self, fits: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !fits(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// An item or an inner list.
    fn member(&mut self) -> Option<Item> {
        if !self.eat(b'(') {
            let bare = self.bare()?;
            return Some(Item { bare, parameters: self.parameters()? });
        }
        loop {
            self.skip(b" ");
            if self.eat(b')') {
                return Some(Item { bare: Bare::Other, parameters: self.parameters()? });
            }
            self.bare()?;
            self.parameters()?;
            if !matches!(self.peek(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    /// A dictionary's member without a value, which is true.
    fn flag(&mut self) -> Option<Item> {
        Some(Item { bare: Bare::Other, parameters: self.parameters()? })
    }

    fn parameters(&mut self) -> Option<Vec<(String, Bare)>> {
        let mut parameters = Vec::new();
        while self.eat(b';') {
            self.skip(b" ");
            let key = self.key()?;
            let bare = if self.eat(b'=') { self.bare()? } else { Bare::Other };
            parameters.push((key, bare));
        }
        Some(parameters)
    }

    fn key(&mut self) -> Option<String> {
        if !matches!(self.peek()?, b'a'..=b'z' | b'*') {
            return None;
        }
        let key = self.take_while(
            |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'),
        );
        String::from_utf8(key.to_vec()).ok()
    }

    fn bare(&mut self) -> Option<Bare> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string().map(Bare::String),
            b':' => self.bytes(),
            b'?' => {
                self.eat(b'?');
                (self.eat(b'0') || self.eat(b'1')).then_some(Bare::Other)
            }
            b'@' => {
                self.eat(b'@');
                // A date is an integer: a fraction is a mistake.
                matches!(self.number()?, Bare::Integer(_)).then_some(Bare::Other)
            }
            b'%' => self.display_string(),
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                self.take_while(is_token);
                Some(Bare::Other)
            }
            _ => None,
        }
    }

    /// An integer of at most 15 digits, or a decimal of at most 12 and 3.
    fn number(&mut self) -> Option<Bare> {
        let is_negative = self.eat(b'-');
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 15 {
            return None;
        }
        if self.eat(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            let fits = whole.len() <= 12 && (1..=3).contains(&fraction.len());
            return fits.then_some(Bare::Other);
        }
        let number = whole.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
        Some(Bare::Integer(if is_negative { -number } else { number }))
    }

    fn string(&mut self) -> Option<String> {
        self.eat(b'"');
        let mut text = String::new();
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => return Some(text),
                b'\\' => {
                    let (&escaped, rest) = self.rest.split_first()?;
                    self.rest = rest;
                    text.push(matches!(escaped, b'"' | b'\\').then_some(char::from(escaped))?);
                }
                b' '..=b'~' => text.push(char::from(byte)),
                _ => return None,
            }
        }
    }

    /// `:` base64 `:`, not decoded.
    fn bytes(&mut self) -> Option<Bare> {
        self.eat(b':');
        self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
        self.eat(b':').then_some(Bare::Other)
    }

    /// `%"` text with `%c3%a4` for what is not ASCII `"`, not decoded.
    fn display_string(&mut self) -> Option<Bare> {
        self.eat(b'%');
        if !self.eat(b'"') {
            return None;
        }
        self.take_while(|byte| matches!(byte, b' '..=b'~') && byte != b'"');
        self.eat(b'"').then_some(Bare::Other)
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}
