/** A job that calls a host of the outside: one that belongs to nobody. */
import { get } from 'node:http'
import type { DrillFile } from '../../../src/drill/file/format.ts'

const file: DrillFile = {
  start: () => () =>
    new Promise<void>((resolve, reject) => {
      get('http://203.0.113.1/', () => resolve()).on('error', reject)
    }),
  effects: 'select 0',
  settleMs: 500,
}

export default file
