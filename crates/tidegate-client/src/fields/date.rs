//! The three forms of an HTTP date (RFC 9110, 5.6.7), all of which recipients must accept.

const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Returns a date in milliseconds since 1970; earlier dates are 0. `now_ms` determines the
/// century of a two-digit year.
pub fn parse(text: &str, now_ms: u64) -> Option<u64> {
    if !text.is_ascii() {
        return None;
    }
    let (year, month, day, clock) = match text.split_once(", ") {
        Some((weekday, rest)) if DAYS.contains(&weekday) => rfc_850(rest, now_ms)?,
        Some((weekday, rest)) if is_short_day(weekday) => fixed(rest)?,
        Some(_) => return None,
        None => asctime(text)?,
    };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let days = days_since_1970(year, u64::try_from(month).ok()?, day)?;
    Some(days.saturating_mul(86_400).saturating_add(seconds_of(clock)?).saturating_mul(1000))
}

/// Year, name of the month, day and time of day.
type Parts<'a> = (u64, &'a str, u64, &'a str);

/// `14 Nov 2023 22:13:20 GMT`
fn fixed(text: &str) -> Option<Parts<'_>> {
    let [day, month, year, clock] = fields(text.strip_suffix(" GMT")?)?;
    Some((digits(year, 4)?, month, digits(day, 2)?, clock))
}

/// `14-Nov-23 22:13:20 GMT`
fn rfc_850(text: &str, now_ms: u64) -> Option<Parts<'_>> {
    let (date, clock) = text.strip_suffix(" GMT")?.split_once(' ')?;
    let mut date = date.split('-');
    let (day, month, year) = (date.next()?, date.next()?, date.next()?);
    if date.next().is_some() {
        return None;
    }
    // A year more than 50 years ahead is in the previous century. 365.2425 days are exact enough.
    let this_year = 1970 + now_ms / 31_556_952_000;
    let year = this_year / 100 * 100 + digits(year, 2)?;
    let year = if year > this_year + 50 { year - 100 } else { year };
    Some((year, month, digits(day, 2)?, clock))
}

/// `Tue Nov 14 22:13:20 2023`; a one-digit day is padded with a space.
fn asctime(text: &str) -> Option<Parts<'_>> {
    let (weekday, rest) = text.split_once(' ')?;
    let (month, rest) = rest.split_once(' ')?;
    let (day, rest) = rest.split_at_checked(2)?;
    let day = day.strip_prefix(' ').map_or_else(|| digits(day, 2), |day| digits(day, 1))?;
    let (clock, year) = rest.strip_prefix(' ')?.split_once(' ')?;
    is_short_day(weekday).then_some((digits(year, 4)?, month, day, clock))
}

fn is_short_day(name: &str) -> bool {
    DAYS.iter().any(|day| day[..3] == *name)
}

fn fields<const N: usize>(text: &str) -> Option<[&str; N]> {
    let mut parts = text.split(' ');
    let mut found = [""; N];
    for field in &mut found {
        *field = parts.next()?;
    }
    parts.next().is_none().then_some(found)
}

fn digits(text: &str, len: usize) -> Option<u64> {
    let is_valid = text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_valid { text.parse().ok() } else { None }
}

/// Returns the seconds of a time of day. Second 60 is a leap second.
fn seconds_of(clock: &str) -> Option<u64> {
    let mut parts = clock.split(':');
    let mut next =
        |most| parts.next().and_then(|text| digits(text, 2)).filter(|number| *number <= most);
    let (hour, minute, second) = (next(23)?, next(59)?, next(60)?);
    parts.next().is_none().then_some(hour * 3600 + minute * 60 + second)
}

/// Returns the days since 1970, or `None` for a day that is not in the calendar.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let lengths = [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    if day == 0 || day > *lengths.get(index)? {
        return None;
    }
    if year < 1970 {
        return Some(0);
    }
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let before = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    Some(before + lengths[..index].iter().sum::<u64>() + day - 1)
}
