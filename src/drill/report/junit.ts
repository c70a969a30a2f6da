/**
 * JUnit: a drill's windows as test cases, for the pages that CI systems make of them.
 *
 * @module
 */

import type { DrillResult } from '../drill.ts'
import type { WindowResult } from '../run/campaign.ts'
import { steps, verdictText } from './story.ts'

export function junit({ name, windows, tookMs }: DrillResult): string {
  const failures = windows.filter(({ passed }) => !passed).length
  const suite = `name="${escaped(name)}" tests="${windows.length}" failures="${failures}" time="${seconds(tookMs)}"`
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    `<testsuites><testsuite ${suite}>`,
    ...windows.map((window) => testCase(name, window)),
    '</testsuite></testsuites>',
    '',
  ].join('\n')
}

function testCase(drill: string, window: WindowResult): string {
  const { run, passed } = window
  const head = `classname="drill.${escaped(drill)}" name="${escaped(window.name)}" time="${seconds(run?.tookMs ?? 0)}"`
  if (passed) return `  <testcase ${head}/>`
  const text = run === undefined ? (window.equalTo ?? '') : steps(run).join('\n')
  return `  <testcase ${head}>\n    <failure message="${verdictText(window)}">${escaped(text)}</failure>\n  </testcase>`
}

const seconds = (ms: number): string => (ms / 1_000).toFixed(3)

function escaped(text: string): string {
  return (
    text
      .replaceAll('&', '&amp;')
      .replaceAll('<', '&lt;')
      .replaceAll('>', '&gt;')
      .replaceAll('"', '&quot;')
      // XML 1.0 has no way to write these.
      .replaceAll(/[^\t\n\r -\uD7FF\uE000-\uFFFD]/g, '\uFFFD')
  )
}
