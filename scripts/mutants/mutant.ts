/** A mutant: one small breakage of our own protocol, and the test that must notice it. */
export interface Mutant {
  /** What is broken, in words with dashes. */
  readonly id: string
  /** Path from the root of the repository. */
  readonly file: string
  /** Text of the file; it must be there exactly once, else the mutant is stale. */
  readonly find: string
  readonly replace: string
  /** `name` is a part of the test's full name (describe and test), which tells one test or a few. */
  readonly test: { readonly file: string; readonly name: string }
}

/** Mutants of one area, without their file written each time. */
export function inFile(
  file: string,
  mutants: Readonly<Record<string, readonly [find: string, replace: string, testFile: string, testName: string]>>,
): readonly Mutant[] {
  return Object.entries(mutants).map(([id, [find, replace, testFile, name]]) => ({
    id,
    file,
    find,
    replace,
    test: { file: testFile, name },
  }))
}
