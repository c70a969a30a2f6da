/**
 * After a reload or a restart: what a storage still holds, and sending it again.
 *
 * @module
 */

import { type SendOperation, sendable } from './operation.ts'
import { decodeRecord, type OperationRecord, type UnreadableReason } from './record.ts'
import type { OperationResult } from './result.ts'
import { type ClientOptions, positive, type SendCall, type Settings, settingsOf } from './settings.ts'

export interface PendingOptions extends ClientOptions {
  /**
   * Origins (`https://api.example.org`) that operations may go to; entries for others are reported as unreadable with
   * the reason `origin`. Default: any. With a storage that others can write to, name them.
   */
  readonly origins?: readonly string[] | undefined
}

export interface PendingOperations {
  /** Oldest first, also those whose outcome is unknown. */
  readonly operations: readonly SendOperation[]
  /** Left where they are; never sent. */
  readonly unreadable: readonly UnreadableEntry[]
}

export interface UnreadableEntry {
  readonly id: string
  readonly reason: UnreadableReason
  /** As found. May hold what the request held. */
  readonly text: string
}

export interface ResumeOptions extends PendingOptions, SendCall {
  /** How many are sent at a time. Default 4. */
  readonly atOnce?: number | undefined
}

export interface ResumeReport {
  /** Every operation that was sent, with what became of it. */
  readonly results: readonly { readonly operation: SendOperation; readonly result: OperationResult }[]
  /** Calls that threw: `onAnswer`, `attemptHeaders` or the storage. The operations stay pending. */
  readonly failed: readonly { readonly operation: SendOperation; readonly error: unknown }[]
  /** Not sent: their outcome could not be learned by asking, and somebody has to look. */
  readonly unknown: readonly SendOperation[]
  /** Not sent: not readable, or not for these origins. Left where they are. */
  readonly unreadable: readonly UnreadableEntry[]
}

/** Reads a storage; sends nothing. */
export async function pendingOperations(options: PendingOptions): Promise<PendingOperations> {
  return pendingIn(settingsOf(options), options.origins)
}

async function pendingIn(settings: Settings, origins: readonly string[] | undefined): Promise<PendingOperations> {
  const records: OperationRecord[] = []
  const unreadable: UnreadableEntry[] = []
  for (const { id, text } of await settings.storage.entries()) {
    const found = decodeRecord(id, text)
    if (typeof found === 'string') unreadable.push({ id, reason: found, text })
    else if (origins !== undefined && !origins.includes(new URL(found.url).origin)) {
      unreadable.push({ id, reason: 'origin', text })
    } else records.push(found)
  }
  records.sort((a, b) => a.createdAt - b.createdAt)
  return { operations: records.map((record) => sendable(record, record, settings, 'try')), unreadable }
}

/**
 * Sends every pending operation of the storage again, each with its own key and bytes. An operation that another tab
 * or process is sending is left to it (`gaveUp`, `held`).
 *
 * Call it when the page or process starts, and when the network comes back.
 */
export async function resumeOperations(options: ResumeOptions): Promise<ResumeReport> {
  const atOnce = positive('atOnce', options.atOnce, 4)
  const { signal, deadlineMs } = options
  const { operations, unreadable } = await pendingIn(settingsOf(options), options.origins)
  const results: { operation: SendOperation; result: OperationResult }[] = []
  const failed: { operation: SendOperation; error: unknown }[] = []
  const waiting = operations.filter(({ unknown }) => unknown === null)
  const sender = async (): Promise<void> => {
    for (let operation = waiting.shift(); operation !== undefined; operation = waiting.shift()) {
      try {
        results.push({ operation, result: await operation({ signal, deadlineMs }) })
      } catch (error) {
        failed.push({ operation, error })
      }
    }
  }
  await Promise.all(Array.from({ length: Math.min(Math.ceil(atOnce), waiting.length) }, sender))
  return { results, failed, unknown: operations.filter(({ unknown }) => unknown !== null), unreadable }
}
