//! A parser for the metrics and labels of a PromQL expression. promtool checks whether it is valid
//! PromQL. Samples of `/metrics` have the same syntax.

/// A metric with the matchers of its labels.
#[derive(Debug, PartialEq, Eq)]
pub struct Selector {
    pub metric: String,
    pub matchers: Vec<Matcher>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Matcher {
    pub label: String,
    pub operator: String,
    pub value: String,
}

/// The metrics and labels of an expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    pub selectors: Vec<Selector>,
    /// The labels in `by (..)` and similar clauses.
    pub grouping: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

pub fn read(expression: &str) -> Named {
    let tokens = tokens(expression);
    let mut named = Named::default();
    let mut rest = &tokens[..];
    while let [first, after @ ..] = rest {
        rest = after;
        let Token::Word(word) = first else { continue };
        match after.first() {
            Some(Token::Sign('(')) if GROUPING.contains(&&**word) => {
                let end = after.iter().position(|token| *token == Token::Sign(')'));
                let (list, behind) = after.split_at(end.expect("a closing parenthesis"));
                named.grouping.extend(list.iter().filter_map(|token| match token {
                    Token::Word(label) => Some(label.clone()),
                    _ => None,
                }));
                rest = behind;
            }
            // A function.
            Some(Token::Sign('(')) => {}
            // An aggregation.
            Some(Token::Word(next)) if GROUPING.contains(&&**next) => {}
            _ if OPERATORS.contains(&&**word) => {}
            Some(Token::Sign('{')) => {
                let end = after.iter().position(|token| *token == Token::Sign('}'));
                let (inside, behind) = after.split_at(end.expect("a closing brace"));
                rest = behind;
                named
                    .selectors
                    .push(Selector { metric: word.clone(), matchers: matchers(&inside[1..]) });
            }
            _ => named.selectors.push(Selector { metric: word.clone(), matchers: Vec::new() }),
        }
    }
    named
}

fn matchers(tokens: &[Token]) -> Vec<Matcher> {
    let each = tokens.split(|token| *token == Token::Sign(',')).filter(|each| !each.is_empty());
    let matcher = |tokens: &[Token]| match tokens {
        [Token::Word(label), signs @ .., Token::Text(value)] => {
            let sign = |token: &Token| match token {
                Token::Sign(sign) => *sign,
                other => panic!("expected an operator, got {other:?}"),
            };
            let operator = signs.iter().map(sign).collect();
            Matcher { label: label.clone(), operator, value: value.clone() }
        }
        other => panic!("expected a matcher, got {other:?}"),
    };
    each.map(matcher).collect()
}

/// Splits an expression into tokens. Numbers and ranges are skipped.
fn tokens(expression: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let length = match first {
            '"' => {
                let end = end_of_text(rest);
                tokens.push(Token::Text(rest[1..end].replace("\\\"", "\"")));
                end + 1
            }
            '[' => rest.find(']').expect("a closing bracket") + 1,
            c if c.is_ascii_digit() => {
                rest.find(|c: char| !in_word(c) && c != '.').unwrap_or(rest.len())
            }
            c if in_word(c) => {
                let end = rest.find(|c: char| !in_word(c)).unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..end].to_owned()));
                end
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(Token::Sign(c));
                }
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    tokens
}

/// Returns the end of the string that starts here: its first quote that is not escaped.
fn end_of_text(text: &str) -> usize {
    let mut escaped = false;
    let quote = text.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    quote.expect("a closing quote").0
}

#[test]
fn parses_promql_expressions() {
    let named = read(
        r#"sum by (job, le) (rate(a_total{x="1", y!~"a\"b|c,"}[5m])) / on (job) b offset 5m > 0.5 and c{} < 1e3"#,
    );
    let matcher = |label: &str, operator: &str, value: &str| Matcher {
        label: label.into(),
        operator: operator.into(),
        value: value.into(),
    };
    let selector = |metric: &str, matchers| Selector { metric: metric.into(), matchers };
    let expected = Named {
        selectors: vec![
            selector("a_total", vec![matcher("x", "=", "1"), matcher("y", "!~", "a\"b|c,")]),
            selector("b", vec![]),
            selector("c", vec![]),
        ],
        grouping: ["job", "le", "job"].map(str::to_owned).into(),
    };
    assert_eq!(named, expected);
}
