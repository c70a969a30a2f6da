/**
 * Status line: the last line of a terminal, written over and over. Nothing is written where nobody watches.
 *
 * @module
 */

/** What is needed of `process.stderr`. */
export interface Terminal {
  readonly isTTY?: boolean | undefined
  readonly columns?: number | undefined
  write(text: string): unknown
}

export interface StatusLine {
  /** Undefined when the stream is no terminal. */
  readonly show: ((text: string) => void) | undefined
  /** Before anything else is written. */
  clear(): void
}

const COLUMNS = 80
const CLEARED = '\r\u001B[2K'

export function statusLine(terminal: Terminal): StatusLine {
  if (terminal.isTTY !== true) return { show: undefined, clear: () => {} }
  let shown = false
  return {
    show(text) {
      shown = true
      // A longer line would break, and only its last part be written over.
      terminal.write(CLEARED + text.slice(0, (terminal.columns ?? COLUMNS) - 1))
    },
    clear() {
      if (shown) terminal.write(CLEARED)
      shown = false
    },
  }
}
