/** What the processes of a path load: the path that WINDOWS_PATH names. */
import type { DrillFile } from '../../../src/testing/index.ts'
import { paths } from './all.ts'

export { paths }

const path: DrillFile | undefined = paths[process.env['WINDOWS_PATH'] ?? '']
export default path
