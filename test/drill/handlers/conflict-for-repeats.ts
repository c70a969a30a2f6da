import type { DrillFile } from '../../../src/drill/file/format.ts'
import { conflicting } from './conflict.ts'

const file: DrillFile = conflicting('/orders')

export default file
