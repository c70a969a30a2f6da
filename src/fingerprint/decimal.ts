/**
 * JSON numbers as exact decimals: does a double keep what was written?
 *
 * `9007199254740993` parses to the double 9007199254740992 and `0.1000000000000000055` to 0.1: to a
 * handler they look equal, to the sender they are not. The question is asked on digits, never in floating point.
 *
 * @module
 */

/**
 * Canonical text (RFC 8785, section 3.2.2.3) of a JSON number, or why it has none that is equal to it.
 * `token` must match the JSON grammar. Linear in its length.
 */
export function canonicalNumber(token: string): string | 'number-range' | 'number-precision' {
  const value = Number(token)
  const text = String(value) // -0 gives "0"
  if (text === token) return text
  if (!Number.isFinite(value)) return 'number-range'
  return exactDecimal(token) === exactDecimal(text) ? text : 'number-precision'
}

/** One spelling per decimal value: sign, digits without zeros at either end, exponent of the last digit. */
function exactDecimal(token: string): string {
  const start = token.startsWith('-') ? 1 : 0
  const mark = token.search(/[eE]/)
  const mantissaEnd = mark === -1 ? token.length : mark
  const point = token.indexOf('.')
  const whole = token.slice(start, point === -1 ? mantissaEnd : point)
  const fraction = point === -1 ? '' : token.slice(point + 1, mantissaEnd)
  const digits = whole + fraction
  // Loops, not /^0+|0+$/: such an expression is quadratic on long runs of zeros.
  let first = 0
  while (first < digits.length && digits.charCodeAt(first) === ZERO) first++
  if (first === digits.length) return '0'
  let end = digits.length
  while (digits.charCodeAt(end - 1) === ZERO) end--
  // An exponent too long for a double belongs to a number that is 0 or out of range anyway, and so not equal.
  const exponent = Number(token.slice(mantissaEnd + 1)) - fraction.length + (digits.length - end)
  return `${start === 1 ? '-' : ''}${digits.slice(first, end)}e${exponent}`
}

const ZERO = 0x30
