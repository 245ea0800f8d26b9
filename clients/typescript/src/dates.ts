// The three forms of an HTTP date (RFC 9110, section 5.6.7). `Date.parse` accepts more, and
// differs between engines.

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)";
const LONG_DAY = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day";
const MONTH = `(?<month>${MONTHS.join("|")})`;
const TIME = "(?<h>[0-9]{2}):(?<m>[0-9]{2}):(?<s>[0-9]{2})";
const FORMS = [
  new RegExp(`^${DAY}, (?<day>[0-9]{2}) ${MONTH} (?<year>[0-9]{4}) ${TIME} GMT$`),
  new RegExp(`^${LONG_DAY}, (?<day>[0-9]{2})-${MONTH}-(?<year>[0-9]{2}) ${TIME} GMT$`),
  new RegExp(`^${DAY} ${MONTH} (?<day>[0-9]{2}| [0-9]) ${TIME} (?<year>[0-9]{4})$`),
];

/** Returns milliseconds since 1970, or `null` if the value is not a date. */
export function dateMs(value: string, nowMs: number): number | null {
  const groups = FORMS.map((form) => form.exec(value)?.groups).find((found) => found !== undefined);
  if (groups === undefined) return null;
  const number = (name: string) => Number(groups[name]);
  const year = groups["year"]?.length === 2 ? fullYear(number("year"), nowMs) : number("year");
  const [month, day, hour] = [MONTHS.indexOf(groups["month"] ?? ""), number("day"), number("h")];
  const date = new Date(0);
  // `Date.UTC` reads years below 100 as years of the 20th century.
  date.setUTCFullYear(year, month, day);
  date.setUTCHours(hour, number("m"), number("s"));
  // A 31st of February has become a day of March.
  const isValid = date.getUTCDate() === day && hour < 24 && number("m") < 60 && number("s") < 60;
  return isValid ? date.getTime() : null;
}

/** Returns the year. One that is more than 50 years ahead is in the previous century. */
function fullYear(twoDigits: number, nowMs: number): number {
  const thisYear = new Date(nowMs).getUTCFullYear();
  const year = thisYear - (thisYear % 100) + twoDigits;
  return year > thisYear + 50 ? year - 100 : year;
}
