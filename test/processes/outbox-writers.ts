/** Runs the writers of WRITING (JSON) in a process of their own. */
import { type Writing, write } from '../torture/writers.ts'

await write(JSON.parse(process.env['WRITING'] ?? '{}') as Writing)
