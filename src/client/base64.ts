/**
 * Bytes as text, and the checksum that tells a damaged entry from a whole one. Web APIs only: `Uint8Array.toBase64`
 * is too new, `crypto.subtle` is missing on pages that are not secure.
 *
 * @module
 */

/** So many arguments of `fromCharCode` are safe on every stack. */
const CHUNK = 8_192

export function toBase64(bytes: Uint8Array): string {
  let binary = ''
  for (let at = 0; at < bytes.length; at += CHUNK) {
    binary += String.fromCharCode(...bytes.subarray(at, at + CHUNK))
  }
  return btoa(binary)
}

/** undefined when the text is not base64 as `toBase64` writes it. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(text)) return undefined
  const binary = atob(text)
  const bytes = new Uint8Array(binary.length)
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at)
  return bytes
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xed_b8_83_20 : value >>> 1
  return value
})

/** CRC-32 of the text's UTF-8 bytes, eight hexadecimal digits. Finds accidents, not forgers. */
export function checksum(text: string): string {
  let crc = 0xff_ff_ff_ff
  for (const byte of new TextEncoder().encode(text)) crc = (crc >>> 8) ^ (CRC_TABLE[(crc ^ byte) & 0xff] ?? 0)
  return ((crc ^ 0xff_ff_ff_ff) >>> 0).toString(16).padStart(8, '0')
}
