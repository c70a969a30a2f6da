/** Drills of this folder's handlers, each on a PostgreSQL of its own that can be restarted, and their result in short. */
import { inject } from 'vitest'
import { type DrillOptions, type DrillResult, drill } from '../../src/drill/drill.ts'
import type { WindowResult } from '../../src/drill/run/campaign.ts'

export const DRILL_MS = 400_000

export function drillHandler(name: string, options: DrillOptions = {}): Promise<DrillResult> {
  return drill(`test/drill/handlers/${name}.ts`, {
    databaseUrl: '',
    amqpUrl: inject('amqpUrl') ?? undefined,
    ...options,
  })
}

const short = ({ name, verdict, reached }: WindowResult): string => `${name}: ${reached ? verdict : 'not reached'}`

/** What failed, in the order of the report. */
export function failed({ windows }: DrillResult): readonly string[] {
  return windows.filter(({ passed }) => !passed).map(short)
}

/** Windows of one kind with their verdicts. */
export function ofFault({ windows }: DrillResult, fault: string): readonly string[] {
  return windows.filter(({ window }) => window.fault === fault).map(short)
}
