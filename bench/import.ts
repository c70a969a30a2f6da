/**
 * Import: what loading the core costs a fresh process.
 *
 * @module
 */

import { spawnSync } from 'node:child_process'
import { median, quartiles } from './paired.ts'
import { valueResult } from './report.ts'
import { DIST } from './subject.ts'
import type { SuiteOptions, SuiteResult } from './suite.ts'

const TIMEOUT_MS = 30_000

/** Wall time of a node process that runs `code` and ends, milliseconds. */
function processMs(code: string): number {
  const startedAt = performance.now()
  const { status, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', code], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: {},
    timeout: TIMEOUT_MS,
  })
  const ms = performance.now() - startedAt
  if (status !== 0) throw new Error(`a node process failed: ${stderr.toString()}`)
  return ms
}

export async function importSuite({ say, pairs = 20 }: SuiteOptions): Promise<SuiteResult> {
  const importing = `import ${JSON.stringify(new URL('index.js', DIST).href)}`
  processMs(importing)
  const [withCore, empty, control]: [number[], number[], number[]] = [[], [], []]
  for (let pair = 0; pair < pairs; pair++) {
    empty.push(processMs(''))
    withCore.push(processMs(importing))
    control.push(processMs(''))
  }
  const differences = withCore.map((ms, pair) => ms - ((empty[pair] ?? 0) + (control[pair] ?? 0)) / 2)
  const result = valueResult(
    {
      name: 'import-core',
      value: median(withCore) - median([...empty, ...control]),
      unit: 'ms',
      direction: 'lower',
      baseline: median(empty),
      ratio: median(withCore) / median(empty),
      quartiles: quartiles(differences),
      pairs,
      controlRatio: median(control) / median(empty),
      limit: 15,
    },
    say,
  )
  // Nothing here touches a disk; the field says so for all suites alike.
  return { durable: true, versions: {}, results: [result] }
}
