/** All paths. A new one needs no more than an entry in one of these files. */
import type { Paths } from '../path.ts'
import { housekeepingPaths } from './housekeeping.ts'
import { httpPaths } from './http.ts'
import { inboxPaths } from './inbox.ts'
import { leasedPaths } from './leased.ts'
import { operationPaths } from './operation.ts'
import { relayPaths } from './relay.ts'

export const paths: Paths = {
  ...operationPaths,
  ...relayPaths,
  ...inboxPaths,
  ...leasedPaths,
  ...housekeepingPaths,
  ...httpPaths,
}
