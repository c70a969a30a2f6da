/**
 * Control of a fake provider over HTTP, for tests whose provider runs in another process: both ends of it.
 *
 * The path holds a random token, so that a caller under test cannot reach it by accident.
 *
 * @module
 */

import { integerOption } from '../../shared/options.ts'
import type { ProviderEffect, ProviderRequest } from './book.ts'
import type { ProviderFault } from './fault.ts'
import type { HeldFilter, HeldRequest, Provider, ProviderState } from './state.ts'
import type { WaitOptions } from './watch.ts'

/** What a control request asks for. */
export type ControlCommand =
  | { readonly command: 'fault'; readonly fault: ProviderFault }
  | { readonly command: 'clearFaults' }
  | { readonly command: 'advance'; readonly ms: number }
  | { readonly command: 'release'; readonly filter: HeldFilter }
  | { readonly command: 'forget'; readonly key?: string | undefined }
  | { readonly command: 'count'; readonly reference?: string | undefined }
  /** Answers when the version has become another than `seen`, or after `waitMs`. */
  | { readonly command: 'state'; readonly seen: number; readonly waitMs: number }

/** Carries out a control request. */
export async function obey(provider: Provider, command: ControlCommand): Promise<unknown> {
  switch (command.command) {
    case 'fault':
      provider.fault(command.fault)
      return null
    case 'clearFaults':
      provider.script.clear()
      return null
    case 'advance':
      provider.advance(command.ms)
      return null
    case 'release':
      return provider.release(command.filter)
    case 'forget':
      provider.forget(command.key)
      return null
    case 'count':
      return provider.count(command.reference)
    case 'state': {
      const { watch } = provider
      const waitMs = Math.min(Math.max(1, command.waitMs), LONG_POLL_MS)
      await watch
        .until(
          () => watch.version !== command.seen,
          waitMs,
          () => '',
        )
        .catch(() => {})
      return { version: watch.version, state: provider.state }
    }
  }
}

const LONG_POLL_MS = 10_000

/** A fake provider of another process. */
export interface RemoteProvider {
  /** What was really applied, oldest first. */
  effects(): Promise<readonly ProviderEffect[]>
  /** How often it was applied, in all or with one reference. */
  count(reference?: string): Promise<number>
  requests(): Promise<readonly ProviderRequest[]>
  held(): Promise<readonly HeldRequest[]>
  /** Scripts faults; each takes its place behind those that wait already. */
  fault(...faults: readonly ProviderFault[]): Promise<void>
  /** Takes back the scripted faults that were not met. */
  clearFaults(): Promise<void>
  /** Moves the provider's own clock, whole milliseconds. */
  advance(ms: number): Promise<void>
  /** Lets held requests go on. @returns how many. */
  release(filter?: HeldFilter): Promise<number>
  /** The provider forgets a key, or all of them. */
  forget(key?: string): Promise<void>
  /** Waits until the state is as wanted; looks again at each change. */
  waitFor(reached: (state: ProviderState) => boolean, options?: WaitOptions): Promise<ProviderState>
}

/**
 * Reaches a fake provider of another process.
 *
 * @param controlUrl - `controlUrl` of the fake provider.
 */
export function remoteProvider(controlUrl: string): RemoteProvider {
  const ask = async (command: ControlCommand, signal?: AbortSignal): Promise<unknown> => {
    const response = await fetch(controlUrl, {
      method: 'POST',
      body: JSON.stringify(command),
      ...(signal === undefined ? {} : { signal }),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`the fake provider answered ${response.status}: ${text.slice(0, 200)}`)
    return JSON.parse(text) as unknown
  }
  const stateAfter = async (seen: number, waitMs: number, signal?: AbortSignal) =>
    (await ask({ command: 'state', seen, waitMs }, signal)) as { version: number; state: ProviderState }
  const state = async () => (await stateAfter(-1, 1)).state

  return {
    effects: async () => (await state()).effects,
    count: async (reference) => Number(await ask({ command: 'count', reference })),
    requests: async () => (await state()).requests,
    held: async () => (await state()).held,
    fault: async (...faults) => {
      for (const fault of faults) await ask({ command: 'fault', fault })
    },
    clearFaults: async () => void (await ask({ command: 'clearFaults' })),
    advance: async (ms) => void (await ask({ command: 'advance', ms })),
    release: async (filter = {}) => Number(await ask({ command: 'release', filter })),
    forget: async (key) => void (await ask({ command: 'forget', key })),
    async waitFor(reached, options = {}) {
      const timeoutMs = integerOption('timeoutMs', options.timeoutMs, { min: 1, max: 600_000, default: 10_000 })
      const until = performance.now() + timeoutMs
      let seen = -1
      for (;;) {
        options.signal?.throwIfAborted()
        const left = Math.ceil(until - performance.now())
        if (left <= 0) throw new Error(`not reached within ${timeoutMs} ms`)
        const { version, state: found } = await stateAfter(seen, left, options.signal)
        if (reached(found)) return found
        seen = version
      }
    },
  }
}
