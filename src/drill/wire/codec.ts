/**
 * Codec: what a protocol must say about the bytes of one connection, so that the gateway can tell steps from each other
 * and stop at any of them.
 *
 * A codec reads both directions and hands every byte on as pieces. A piece may carry a step: something the client asks
 * for, that the world may do and that is answered. Pieces are produced one at a time, so that what became of the last
 * one is known before the next is read.
 *
 * @module
 */

/** Something that a process asks of the world outside. */
export interface Step {
  readonly kind: 'sql' | 'amqp' | 'http'
  /** What it is, without values: `insert into orders`, `publish`, `POST /v1/charges`. */
  readonly label: string
  /** What a statement calls itself in a comment; it tells apart what has the same label. */
  readonly calledItself?: string | undefined
  /** Known once it was answered. */
  answer?: Answer | undefined
}

/** How a step ended. */
export interface Answer {
  /** Command tag or status, for people. */
  readonly text: string
  readonly failed: boolean
  /** Whether something outside of the process may have changed for good. */
  readonly durable: boolean
  /** Whether a database transaction is open behind it. */
  readonly inTransaction: boolean
}

export interface Piece {
  readonly bytes: Buffer
  /** The client asks for this step with these bytes. */
  readonly asks?: Step | undefined
  /** These bytes of the server answer this step; its `answer` is set. */
  readonly answers?: Step | undefined
  /** The step that is asked for has no answer: it is done when the bytes have arrived. */
  readonly oneWay?: boolean | undefined
}

export interface Codec {
  fromClient(bytes: Buffer): Iterable<Piece>
  fromServer(bytes: Buffer): Iterable<Piece>
  /** Bytes to send in place of the piece just read, so that the server refuses the step with this SQLSTATE. */
  refuse?(step: Step, sqlState: string): Buffer
  /** Messages that were handed to the client and are not acknowledged. */
  readonly unsettled?: number
}
