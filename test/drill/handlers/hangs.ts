/** A job whose end nobody sees. */
import type { DrillFile } from '../../../src/drill/file/format.ts'

const file: DrillFile = {
  start: () => () => new Promise(() => {}),
  effects: 'select 0',
  settleMs: 500,
}

export default file
