import { pause } from '../src/shared/waiting.ts'

/** Polls until the condition holds; fails after `timeoutMs`. */
export async function eventually(
  what: string,
  holds: () => boolean | Promise<boolean>,
  timeoutMs: number = 20_000,
): Promise<void> {
  const deadline = performance.now() + timeoutMs
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`not within ${timeoutMs} ms: ${what}`)
    await pause(10)
  }
}
