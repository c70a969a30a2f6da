/**
 * Replacing: a newer job takes the place of an older one, before the older has started or while it runs. (SC52)
 *
 * Both acts are decided where owners are: whoever has claimed the older one comes before, or is refused.
 *
 * @module
 */

import type { NewJob } from './job.ts'
import type { NewRecord } from './operation.ts'

/**
 * - `replaced`: the job that waited has the new content.
 * - `started`: it was claimed before, is finished, or is another kind's: nothing was changed.
 * - `missing`: there is none.
 * - `busy`: another transaction has an uncommitted claim on the key.
 */
export type ReplaceAnswer = 'replaced' | 'started' | 'missing' | 'busy'

/**
 * - `ended`: it has this outcome now, and its owner, if it had one, is fenced.
 * - `kept`: one of its effects may have happened, or it is parked: it goes on, or waits for a person (I11).
 * - `decided`: it had its outcome already.
 * - `missing`: there is none.
 */
export type EndAnswer = 'ended' | 'kept' | 'decided' | 'missing'

export interface JobReplacing<Tx> {
  /**
   * Gives a job that nobody has ever claimed another token, fingerprint, version and payload. It is then due in `delayMs`;
   * null = when it was.
   */
  replace(job: NewJob, delayMs: number | null): Promise<ReplaceAnswer>
  /** The same in the caller's own transaction. */
  replaceIn(tx: Tx, job: NewJob, delayMs: number | null): Promise<ReplaceAnswer>
  /**
   * Ends an unfinished operation in the caller's own transaction, whoever works on it. What its steps have committed stays.
   *
   * @param by - What has replaced it, for its history.
   */
  endIn(tx: Tx, record: NewRecord, by: string): Promise<EndAnswer>
}
