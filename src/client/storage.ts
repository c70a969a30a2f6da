/**
 * Where pending operations are written down: the contract of the storages.
 *
 * @module
 */

export interface OperationStorage {
  /** Tells storages of one origin or host apart; pages and processes that share entries share the name. */
  readonly name: string
  /**
   * Who else sees the entries: nobody (`page`), the tabs and workers of an origin (`origin`), the processes of a
   * machine (`host`). Tabs agree on one sender by Web Locks where the browser has them.
   */
  readonly sharedBy: 'page' | 'origin' | 'host'
  /** All entries, also those that are not ours to understand. */
  entries(): Promise<readonly StoredEntry[]>
  read(id: string): Promise<string | undefined>
  /** Resolves when the entry would survive the end of this page or process. */
  write(id: string, text: string): Promise<void>
  remove(id: string): Promise<void>
  /**
   * Takes the turn to send `id`, or prolongs one's own. Where Web Locks are used it is not called.
   *
   * @returns undefined when it is ours until `untilAt`; else who has it, and until when.
   */
  takeTurn(id: string, turn: Turn, now: number): Promise<Turn | undefined>
  /** Gives the turn back if `owner` still has it. */
  endTurn(id: string, owner: string): Promise<void>
}

export interface StoredEntry {
  readonly id: string
  readonly text: string
}

/** The right to send one operation, for a time: whoever dies gives it back by that. */
export interface Turn {
  readonly owner: string
  /** Milliseconds since 1970. */
  readonly untilAt: number
}

/** Whether the turn found is in the way of `owner`. */
export function inTheWay(found: Turn | undefined, owner: string, now: number): boolean {
  return found !== undefined && found.owner !== owner && found.untilAt > now
}

/** A turn as it lies in a storage; undefined for what is none, which is in nobody's way. */
export function turnOf(text: string | null | undefined): Turn | undefined {
  try {
    const value = JSON.parse(text ?? 'null') as Partial<Turn> | null
    return typeof value?.owner === 'string' && typeof value.untilAt === 'number'
      ? { owner: value.owner, untilAt: value.untilAt }
      : undefined
  } catch {
    return undefined
  }
}
