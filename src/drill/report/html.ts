/**
 * HTML: the map of a handler as one page without scripts or anything from elsewhere: its boundaries downwards, the
 * faults across, a verdict in each place, and the story of each failure.
 *
 * @module
 */

import { type DrillResult, drillToken } from '../drill.ts'
import { boundaryText, sameBoundary } from '../run/boundary.ts'
import type { WindowResult } from '../run/campaign.ts'
import { type Fault, faultText } from '../run/window.ts'
import { lastLine, steps, verdictText } from './story.ts'

/** @param folder - Where the page's reader runs `drill replay`. */
export function html(result: DrillResult, folder: string): string {
  const { name, windows, trace } = result
  const atBoundaries = windows.filter(({ window: { at, second } }) => at !== undefined && second === undefined)
  const columns = [...new Set(atBoundaries.map(({ window: { fault, at } }) => `${fault} ${at?.side ?? ''}`))]
  const rows = trace.map((boundary) => {
    const cells = columns.map((column) => {
      const here = atBoundaries.find(
        ({ window: { fault, at } }) =>
          at !== undefined && sameBoundary(at, boundary) && `${fault} ${at.side}` === column,
      )
      return here === undefined ? '<td></td>' : `<td class="${classOf(here)}">${mark(here)}</td>`
    })
    const answer = boundary.answer?.text ?? ''
    return `<tr><th scope="row">${escaped(boundaryText(boundary))}<small>${escaped(answer)}</small></th>${cells.join('')}</tr>`
  })
  const others = windows.filter(({ window: { at } }) => at === undefined)
  const pairs = windows.filter(({ window: { second } }) => second !== undefined)
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>drill ${escaped(name)}</title>
<style>${STYLE}</style>
<h1>${escaped(name)} <span class="${result.passed ? 'good' : 'bad'}">${result.passed ? 'passed' : 'failed'}</span></h1>
<p>${escaped(lastLine(result))}</p>
<p>Code ${result.codeHash.slice(0, 12)}, ${escaped(
    Object.entries(result.versions)
      .map(([what, version]) => `${what} ${version}`)
      .join(', '),
  )}</p>
<h2>Map</h2>
<div class="map"><table><thead><tr><th scope="col">boundary</th>${columns.map(columnHead).join('')}</tr></thead>
<tbody>${rows.join('\n')}</tbody></table></div>
<h2>Deliveries</h2>
${list(others)}
${pairs.length === 0 ? '' : `<h2>Second faults</h2>\n${list(pairs)}`}
${failures(result, folder)}
</html>
`
}

function columnHead(column: string): string {
  const [fault = '', side = ''] = column.split(' ')
  return `<th scope="col">${escaped(faultText(fault as Fault))}<small>${side}</small></th>`
}

function list(windows: readonly WindowResult[]): string {
  const items = windows.map(
    (window) => `<li class="${classOf(window)}">${escaped(window.name)}: ${escaped(verdictText(window))}</li>`,
  )
  return `<ul>${items.join('\n')}</ul>`
}

function failures(result: DrillResult, folder: string): string {
  const failed = result.windows.filter(({ passed, run }) => !passed && run !== undefined)
  if (failed.length === 0) return ''
  const stories = failed.map((window) => {
    const told = window.run === undefined ? '' : steps(window.run).join('\n')
    const again = `npx effectively-once drill replay ${drillToken(result, window, folder)}`
    return `<details><summary class="bad">${escaped(verdictText(window))}: ${escaped(window.name)}</summary>
<pre>${escaped(told)}</pre><p>Again: <code>${again}</code></p></details>`
  })
  return `<h2>Failures</h2>\n${stories.join('\n')}`
}

const classOf = ({ passed, verdict }: WindowResult): string =>
  passed ? 'good' : verdict === undefined ? 'none' : 'bad'

/** Short enough for a cell; the colour is not the only sign. */
function mark(window: WindowResult): string {
  const text = window.passed ? 'ok' : verdictText(window)
  return window.equalTo === undefined ? escaped(text) : `<i title="as ${escaped(window.equalTo)}">${escaped(text)}</i>`
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;')
}

const STYLE = `
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 90rem; margin: 2rem auto; padding: 0 1rem }
.map { overflow-x: auto }
table { border-collapse: collapse }
th, td { border: 1px solid #8886; padding: .3rem .6rem; text-align: left; vertical-align: top }
tbody th { font: 13px ui-monospace, monospace; white-space: nowrap }
small { display: block; font-weight: normal; opacity: .7 }
.good { color: #1a7f37 } .bad { color: #cf222e; font-weight: 600 } .none { opacity: .6 }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; border-radius: 4px }
code { word-break: break-all }
summary { cursor: pointer }
@media (prefers-color-scheme: dark) { .good { color: #3fb950 } .bad { color: #f85149 } }
`
