/**
 * Endings: whether a connection has answered a statement that ends transactions.
 *
 * The server tags every answer with its command, also in a string of several. While a transaction of ours is open only
 * the work can cause a tag that ends one, so where none was seen, the transaction is still ours and need not be asked
 * about. A tag is taken for an ending too often rather than too seldom (ROLLBACK may have been to a savepoint).
 *
 * @module
 */

/** Counts endings; two equal readings = no transaction has ended in between. */
export interface Endings {
  readonly seen: number
}

interface Connection {
  on(event: 'commandComplete', listener: (message: { readonly text?: unknown }) => void): unknown
}

const known = new WeakMap<object, { seen: number }>()

/** Watches the connection of a client; undefined when it is not made of what we know. */
export function endingsOf(client: object): Endings | undefined {
  const connection: unknown = Reflect.get(client, 'connection')
  if (!isConnection(connection)) return undefined
  let endings = known.get(connection)
  if (endings === undefined) {
    const counted = { seen: 0 }
    connection.on('commandComplete', ({ text }) => {
      if (typeof text !== 'string' || ENDS.test(text)) counted.seen += 1
    })
    known.set(connection, counted)
    endings = counted
  }
  return endings
}

const ENDS = /^(?:COMMIT|ROLLBACK|PREPARE TRANSACTION)/

function isConnection(value: unknown): value is Connection {
  if (typeof value !== 'object' || value === null) return false
  // An emitter that tells nothing of answers would make every transaction look untouched.
  return typeof Reflect.get(value, 'on') === 'function' && typeof Reflect.get(value, 'parsedStatements') === 'object'
}
