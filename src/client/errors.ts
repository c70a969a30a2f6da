/**
 * What the client throws besides `TypeError` for wrong arguments. Answers of the server are results, never errors.
 *
 * @module
 */

/**
 * - `BODY_TOO_LARGE`: the body is over `bodyBytesMax`; nothing was stored or sent.
 * - `STORAGE_FAILED`: the operation could not be written down, so it was not sent. `cause` is the storage's error.
 * - `KEY_IN_USE`: an operation with this key is pending with another request; nothing was sent.
 */
export type ClientErrorCode = 'BODY_TOO_LARGE' | 'STORAGE_FAILED' | 'KEY_IN_USE'

/** Narrow it by `code`. Whatever the code, this call has sent nothing. */
export class ClientError extends Error {
  readonly code: ClientErrorCode

  constructor(code: ClientErrorCode, message: string, options: { readonly cause?: unknown } = {}) {
    super(`${message} [${code}]`, options)
    this.name = 'ClientError'
    this.code = code
  }
}
