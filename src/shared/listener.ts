/**
 * Listener: an observer of the application is told, and whatever it does stays its own affair.
 *
 * @module
 */

/**
 * Tells `event` to `listener`. What it throws is ignored, and so is the rejection of a listener that is an async
 * function: nobody would handle it, and it would end the process.
 */
export function tell<E>(listener: ((event: E) => unknown) | undefined, event: E): void {
  try {
    const answer = listener?.(event)
    if (answer instanceof Promise) answer.catch(() => {})
  } catch {
    // An observer stops nothing.
  }
}
