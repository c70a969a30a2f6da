/**
 * The same JSON value in another spelling, and almost the same value: material for properties.
 */
import fc from 'fast-check'

/** JSON values with any Unicode text, in keys too. */
export const json: fc.Arbitrary<unknown> = fc.jsonValue({ stringUnit: 'binary', maxDepth: 5 })

/** A repeatable source of choices; failures are reproduced by its seed, which fast-check prints. */
export type Choose = (choices: number) => number

export const choose: fc.Arbitrary<Choose> = fc.integer().map((seed) => {
  let state = seed >>> 0
  return (choices) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * choices)
  }
})

/** JSON text of `value` with members in another order, blanks, escapes and number forms that change nothing. */
export function respelled(value: unknown, pick: Choose): string {
  const blank = (): string => ['', '', ' ', '\n', '\t', '\r\n  '][pick(6)] as string
  const text = (): string => {
    if (typeof value === 'string') return respelledString(value, pick)
    if (typeof value === 'number') return respelledNumber(value, pick)
    if (typeof value !== 'object' || value === null) return String(value)
    if (Array.isArray(value)) return `[${blank()}${value.map((element) => respelled(element, pick)).join(',')}]`
    const members = Object.entries(value).map(
      ([key, member]) => `${blank()}${respelledString(key, pick)}${blank()}:${respelled(member, pick)}`,
    )
    return `{${blank()}${shuffled(members, pick).join(',')}}`
  }
  return `${blank()}${text()}${blank()}`
}

function shuffled<T>(list: readonly T[], pick: Choose): T[] {
  const rest = [...list]
  return list.map(() => rest.splice(pick(rest.length), 1)[0] as T)
}

function respelledString(text: string, pick: Choose): string {
  return `"${Array.from(text, (character) => respelledCharacter(character, pick)).join('')}"`
}

function respelledCharacter(character: string, pick: Choose): string {
  const hex = (unit: number): string => {
    const digits = unit.toString(16).padStart(4, '0')
    return `\\u${pick(2) === 0 ? digits : digits.toUpperCase()}`
  }
  if (pick(4) === 0) {
    return Array.from({ length: character.length }, (_, at) => hex(character.charCodeAt(at))).join('')
  }
  return character === '/' && pick(2) === 0 ? '\\/' : JSON.stringify(character).slice(1, -1)
}

function respelledNumber(value: number, pick: Choose): string {
  const text = JSON.stringify(value)
  const [mantissa = '', exponent = '0'] = text.split('e')
  const [whole = '', fraction = ''] = mantissa.split('.')
  const sign = whole.startsWith('-') ? '-' : ''
  const digits = whole.replace('-', '')
  const shift = fraction.length + pick(3)
  switch (pick(4)) {
    case 0:
      return text
    case 1: // more zeros behind the point
      return `${whole}.${fraction}${'0'.repeat(1 + pick(3))}E${exponent}`
    case 2: // no point: the digits as a whole number
      return `${sign}${withoutLeadingZeros(digits + fraction.padEnd(shift, '0'))}e${Number(exponent) - shift}`
    default: // everything behind the point, zeros before the exponent
      return `${sign}0.${digits}${fraction}e${exponentText(Number(exponent) + digits.length, pick)}`
  }
}

function withoutLeadingZeros(digits: string): string {
  return digits.replace(/^0+(?=[0-9])/, '')
}

function exponentText(exponent: number, pick: Choose): string {
  const sign = exponent < 0 ? '-' : ['', '+'][pick(2)]
  return `${sign}${'0'.repeat(pick(3))}${Math.abs(exponent)}`
}

/** A copy of `value` with one thing changed somewhere: always another JSON value. */
export function changed(value: unknown, pick: Choose): unknown {
  if (typeof value === 'string') return [`${value} `, `x${value}`, `${value}\u0301`][pick(3)]
  if (typeof value === 'number') return pick(2) === 0 ? String(value) : value === 0 ? 5e-324 : -value
  if (typeof value === 'boolean') return pick(2) === 0 ? !value : String(value)
  if (value === null) return [0, false, '', {}, []][pick(5)]
  if (Array.isArray(value)) return changedArray(value, pick)
  return changedObject(value as Record<string, unknown>, pick)
}

function changedArray(array: readonly unknown[], pick: Choose): unknown {
  if (array.length === 0) return pick(2) === 0 ? [null] : {}
  const at = pick(array.length)
  if (pick(3) === 0) return array.toSpliced(at, 1)
  return array.with(at, changed(array[at], pick))
}

function changedObject(object: Record<string, unknown>, pick: Choose): unknown {
  const entries = Object.entries(object)
  const at = pick(entries.length)
  const [key, member] = entries[at] ?? ['', null]
  if (entries.length === 0) return pick(2) === 0 ? { '': null } : []
  if (pick(4) === 0) return Object.fromEntries(entries.toSpliced(at, 1))
  if (pick(4) === 0) {
    const renamed = `${key}\u0000`
    return Object.hasOwn(object, renamed)
      ? Object.fromEntries(entries.toSpliced(at, 1))
      : Object.fromEntries(entries.with(at, [renamed, member]))
  }
  return Object.fromEntries(entries.with(at, [key, changed(member, pick)]))
}
