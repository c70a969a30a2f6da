/**
 * Key queue: messages that wait for a free slot, in the order of arrival, never two of one key at a time.
 *
 * A key is held from the moment a message of it is taken until it is let go. What arrives for a held key stands behind
 * it, and comes before everything else when the key is free again.
 *
 * @module
 */

export interface Keyed {
  /** undefined = no order asked. */
  readonly key: string | undefined
}

export class KeyQueue<T extends Keyed> {
  readonly #isAlone: (item: T) => boolean
  /** Next to be taken, last element first: what was given back or stood behind a key. */
  readonly #front: T[] = []
  #ready: T[] = []
  /** Elements of `#ready` before this index were taken. */
  #head = 0
  /** Held keys, and who stands behind each. */
  readonly #held: Map<string, T[]> = new Map()
  #behind = 0

  /** @param isAlone - Whether an item, when it is its turn, is taken without others. */
  constructor(isAlone: (item: T) => boolean = () => false) {
    this.#isAlone = isAlone
  }

  get size(): number {
    return this.#front.length + this.#ready.length - this.#head + this.#behind
  }

  push(item: T): void {
    this.#ready.push(item)
  }

  /** Takes up to `count` items and holds their keys. Several of one key may be taken together, in order. */
  take(count: number): T[] {
    const taken: T[] = []
    const own = new Set<string>()
    while (taken.length < count) {
      const item = this.#next()
      if (item === undefined) break
      const { key } = item
      const behind = key === undefined || own.has(key) ? undefined : this.#held.get(key)
      if (behind !== undefined) {
        behind.push(item)
        this.#behind += 1
        continue
      }
      const alone = this.#isAlone(item)
      if (alone && taken.length > 0) {
        this.#front.push(item)
        break
      }
      if (key !== undefined && !own.has(key)) {
        this.#held.set(key, [])
        own.add(key)
      }
      taken.push(item)
      if (alone) break
    }
    return taken
  }

  /** Lets the keys of taken items go; who stood behind them is next. */
  done(items: readonly T[]): void {
    for (const { key } of items) {
      const behind = key === undefined ? undefined : this.#held.get(key)
      if (key === undefined || behind === undefined) continue
      this.#held.delete(key)
      this.#behind -= behind.length
      this.#toFront(behind)
    }
  }

  /** Puts taken items back in front, in their order, and lets their keys go. */
  giveBack(items: readonly T[]): void {
    this.done(items)
    this.#toFront(items)
  }

  /** Removes and returns everything that was not taken. */
  clear(): T[] {
    const all: T[] = []
    for (let item = this.#next(); item !== undefined; item = this.#next()) all.push(item)
    for (const behind of this.#held.values()) all.push(...behind.splice(0))
    this.#behind = 0
    return all
  }

  #toFront(items: readonly T[]): void {
    for (let index = items.length - 1; index >= 0; index -= 1) this.#front.push(items[index] as T)
  }

  #next(): T | undefined {
    const front = this.#front.pop()
    if (front !== undefined) return front
    if (this.#head === this.#ready.length) return undefined
    const item = this.#ready[this.#head]
    this.#head += 1
    if (this.#head === this.#ready.length) {
      this.#ready = []
      this.#head = 0
    }
    return item
  }
}
