import { type Classified, classifyAnswer, classifyFailure } from '../../src/effect/provider/index.ts'
import type { FakeProvider } from '../../src/testing/provider/index.ts'

export interface Told {
  /** What the answer, or its absence, means by the provider's profile. */
  readonly classified: Classified
  readonly body: unknown
}

export interface Charge {
  readonly reference: string
  readonly key?: string | undefined
  readonly amount?: number | undefined
  readonly decline?: boolean | undefined
  readonly signal?: AbortSignal | undefined
}

/** One attempt with fetch, and what it means. Answers that never come need a signal. */
export async function attempt(provider: Pick<FakeProvider, 'url' | 'profile'>, charge: Charge): Promise<Told> {
  const { reference, key, amount = 700, decline, signal } = charge
  try {
    const response = await fetch(`${provider.url}/charges`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...(key === undefined ? {} : { 'Idempotency-Key': key }) },
      body: JSON.stringify({ amount, reference, ...(decline === undefined ? {} : { decline }) }),
      ...(signal === undefined ? {} : { signal }),
    })
    const text = await response.text()
    const answer = { status: response.status, headers: response.headers, body: text }
    return { classified: classifyAnswer(provider.profile, answer), body: JSON.parse(text) as unknown }
  } catch (error) {
    return { classified: classifyFailure(provider.profile, error), body: undefined }
  }
}

export async function lookUp(provider: Pick<FakeProvider, 'url'>, query: string): Promise<Response> {
  return fetch(`${provider.url}/charges${query}`)
}
