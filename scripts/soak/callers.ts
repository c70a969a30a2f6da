/** Callers: ask until they are told, write down what they asked and heard. */
import { pause } from '../../src/shared/waiting.ts'
import type { History, Route } from './history.ts'

export interface CallersOptions {
  readonly ports: readonly number[]
  readonly history: History
  readonly random: () => number
  /** Monotonic: when a caller gives its key up, which is a violation. */
  readonly giveUpAt: () => number
}

const ROUTES: readonly Route[] = ['order', 'order', 'charge', 'job']
/** A caller does not wait for ever for a process that is stopped. */
const ANSWER_MS = 6_000

export class Callers {
  readonly #options: CallersOptions
  /** Every key with the payload it was asked with first. */
  readonly keys: { readonly key: string; readonly route: Route; readonly payload: string }[] = []
  #calls = 0

  constructor(options: CallersOptions) {
    this.#options = options
  }

  /** New operations, one after the other, until `stopped`. */
  async run(name: string, stopped: () => boolean): Promise<void> {
    const { random } = this.#options
    for (let number = 1; !stopped(); number += 1) {
      const route = ROUTES[Math.floor(random() * ROUTES.length)] as Route
      const payload = random() < 0.5 ? 'keyed' : 'reconciled'
      const key = `${name}-${number}`
      this.keys.push({ key, route, payload })
      const others: Promise<void>[] = []
      if (random() < 0.25) others.push(this.ask(key, route, payload))
      // Who comes with another payload may win; then the first one is the mismatch.
      if (route === 'order' && random() < 0.15) others.push(this.ask(key, route, `${payload} 2`))
      await Promise.all([this.ask(key, route, payload), ...others])
      await pause(20 + random() * 80)
    }
  }

  /** Asks until it is decided. */
  async ask(key: string, route: Route, payload: string): Promise<void> {
    const { history, random, ports, giveUpAt } = this.#options
    for (;;) {
      const call = (this.#calls += 1)
      const port = ports[Math.floor(random() * ports.length)] as number
      history.add({ kind: 'asked', at: performance.now(), call, key, route, payload })
      const { status, outcome } = await post(`http://127.0.0.1:${port}/${route}`, key, payload)
      const told =
        status === undefined ? 'open' : outcome !== undefined ? 'outcome' : status === 422 ? 'mismatch' : 'open'
      const answer = { kind: 'answered', at: performance.now(), call, told, status } as const
      history.add(outcome === undefined ? answer : { ...answer, outcome })
      if (told !== 'open' || performance.now() > giveUpAt()) return
      await pause(50 + random() * 150)
    }
  }
}

async function post(
  url: string,
  key: string,
  payload: string,
): Promise<{ readonly status: number | undefined; readonly outcome?: string }> {
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'idempotency-key': key },
      body: JSON.stringify({ payload }),
      signal: AbortSignal.timeout(ANSWER_MS),
    })
    const text = await response.text()
    if (!response.ok) return { status: response.status }
    return { status: response.status, outcome: (JSON.parse(text) as { outcome: string }).outcome }
  } catch {
    return { status: undefined }
  }
}
