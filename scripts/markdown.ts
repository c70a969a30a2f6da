/** What the document checks need to know of a Markdown file: its headings, links and fenced blocks. */

export interface Fence {
  /** Words after the three backticks: language first. */
  readonly words: readonly string[]
  readonly code: string
  /** Line of the opening backticks, from 1. */
  readonly line: number
  /** Text of an HTML comment `<!-- setup ... -->` that stands directly before the block. */
  readonly setup: string
  /** Text of an HTML comment `<!-- after ... -->` that stands directly behind it. */
  readonly after: string
}

/** Fenced blocks in order. */
export function fencesOf(markdown: string): readonly Fence[] {
  const fences: Fence[] = []
  const pattern =
    /(?:^<!-- setup\n(?<setup>[\s\S]*?)\n?-->\n+)?^(?<indent> *)```(?<info>[^\n`]*)\n(?<code>[\s\S]*?)^\k<indent>```[^\S\n]*$(?:\n+<!-- after\n(?<after>[\s\S]*?)\n?-->)?/gm
  for (const match of markdown.matchAll(pattern)) {
    const { setup = '', indent = '', info = '', code = '', after = '' } = match.groups ?? {}
    const before = markdown.slice(0, match.index + match[0].indexOf('```'))
    fences.push({
      words: info.trim().split(/\s+/).filter(Boolean),
      code: code.replaceAll(new RegExp(`^${indent}`, 'gm'), ''),
      line: before.split('\n').length,
      setup,
      after,
    })
  }
  return fences
}

/** The text without fenced blocks, inline code and comments; line numbers are kept. */
function prose(markdown: string): string {
  const blank = (text: string): string => text.replaceAll(/[^\n]/g, ' ')
  return markdown
    .replaceAll(/^( *)```[\s\S]*?^\1```/gm, blank)
    .replaceAll(/<!--[\s\S]*?-->/g, blank)
    .replaceAll(/`[^`\n]+`/g, blank)
}

/** Anchors as GitHub makes them from headings. */
export function anchorsOf(markdown: string): ReadonlySet<string> {
  const anchors = new Set<string>()
  const withoutFences = markdown.replaceAll(/^( *)```[\s\S]*?^\1```/gm, '')
  for (const [, heading = ''] of withoutFences.matchAll(/^#{1,6}\s+(.+?)\s*#*$/gm)) {
    const slug = heading
      .toLowerCase()
      .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')
      .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
      .replaceAll(/\s/g, '-')
    let anchor = slug
    for (let n = 1; anchors.has(anchor); n += 1) anchor = `${slug}-${n}`
    anchors.add(anchor)
  }
  for (const [, id = ''] of markdown.matchAll(/<a (?:id|name)="([^"]+)"/g)) anchors.add(id)
  return anchors
}

/** Targets of links and images, with the line they stand on. */
export function linksOf(markdown: string): readonly { readonly target: string; readonly line: number }[] {
  const text = prose(markdown)
  const found: { target: string; line: number }[] = []
  for (const match of text.matchAll(/\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s+(\S+)/gm)) {
    found.push({ target: match[1] ?? match[2] ?? '', line: text.slice(0, match.index).split('\n').length })
  }
  return found
}
