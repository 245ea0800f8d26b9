// The part of structured fields (RFC 9651) that rate limit fields use.
//
// An error anywhere makes the whole field malformed, so each parser returns everything or
// nothing. Inner lists are not used by these fields and are an error. Values of types that are
// not needed (tokens, byte sequences, dates...) are parsed, so that a field with them is valid,
// and returned as `undefined`.

/** A String is a `string`, an Integer a `number`, all else `undefined`. */
export type Bare = string | number | undefined;

export interface Item {
  readonly value: Bare;
  readonly parameters: ReadonlyMap<string, Bare>;
}

const KEY = /[a-z*][a-z0-9_\-.*]*/y;
const BLANKS = /[ \t]*/y;
const BARE = new RegExp(
  [
    String.raw`"(?<string>(?:[ !#-\[\]-~]|\\["\\])*)"`,
    String.raw`-?[0-9]{1,12}\.[0-9]{1,3}`,
    String.raw`(?<integer>-?[0-9]{1,15})`,
    String.raw`[A-Za-z*][A-Za-z0-9!#$%&'*+\-.^_\x60|~:/]*`,
    String.raw`:[A-Za-z0-9+/=]*:`,
    String.raw`\?[01]`,
    String.raw`@-?[0-9]{1,15}`,
    String.raw`%"(?:[ !#$&-~]|%[0-9a-f]{2})*"`,
  ].join("|"),
  "y",
);

/** Returns the members of a List; empty if it is malformed. */
export function parseList(text: string): Item[] {
  return parsed(text, (reader) => reader.item());
}

/** Returns the members of a Dictionary; empty if it is malformed. The last of repeated names counts. */
export function parseDictionary(text: string): Map<string, Item> {
  return new Map(parsed(text, (reader) => reader.pair()));
}

class Malformed extends Error {}

function parsed<T>(text: string, member: (reader: Reader) => T): T[] {
  try {
    return new Reader(text).members(member);
  } catch (error) {
    if (error instanceof Malformed) return [];
    throw error;
  }
}

class Reader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = trimmed(text);
  }

  members<T>(member: (reader: Reader) => T): T[] {
    const found: T[] = [];
    while (!this.#atEnd()) {
      found.push(member(this));
      this.#match(BLANKS);
      if (this.#atEnd()) break;
      if (!this.#take(",")) throw new Malformed();
      this.#match(BLANKS);
      if (this.#atEnd()) throw new Malformed();
    }
    return found;
  }

  pair(): [string, Item] {
    const key = this.#match(KEY)[0];
    if (this.#take("=")) return [key, this.item()];
    return [key, { value: undefined, parameters: this.#parameters() }];
  }

  item(): Item {
    return { value: this.#bare(), parameters: this.#parameters() };
  }

  #parameters(): Map<string, Bare> {
    const found = new Map<string, Bare>();
    while (this.#take(";")) {
      while (this.#take(" "));
      const key = this.#match(KEY)[0];
      found.set(key, this.#take("=") ? this.#bare() : undefined);
    }
    return found;
  }

  #bare(): Bare {
    const { string, integer } = this.#match(BARE).groups ?? {};
    if (string !== undefined) return string.replace(/\\(.)/g, "$1");
    return integer === undefined ? undefined : Number(integer);
  }

  #match(pattern: RegExp): RegExpExecArray {
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#text);
    if (match === null) throw new Malformed();
    this.#at = pattern.lastIndex;
    return match;
  }

  #take(char: string): boolean {
    const taken = this.#text[this.#at] === char;
    if (taken) this.#at += 1;
    return taken;
  }

  #atEnd(): boolean {
    return this.#at === this.#text.length;
  }
}

/** Removes surrounding spaces and tabs. `trim` removes more than HTTP does. */
export function trimmed(text: string): string {
  let [start, end] = [0, text.length];
  while (start < end && (text[start] === " " || text[start] === "\t")) start += 1;
  while (start < end && (text[end - 1] === " " || text[end - 1] === "\t")) end -= 1;
  return text.slice(start, end);
}
