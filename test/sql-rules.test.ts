import { describe, expect, test } from 'vitest'
import { builtSql, migrationProblems } from '../scripts/sql-rules.ts'

const problems = (code: string): string[] => builtSql('a.ts', code)

describe('SQL rules', () => {
  test('T9: a value put into SQL by template, by + or through a constant is found', () => {
    expect(problems('q(`select * from t where id = ${id}`)')).toEqual(['a.ts:1: ${id} is put into SQL'])
    expect(problems(`q('delete from t where id = ' + id)`)).toEqual(['a.ts:1: ${id} is put into SQL'])
    expect(
      problems('function f(id) {\nconst where = `id = ${id}`\nq(`select 1 from t where ${where}`)\n}'),
    ).toHaveLength(1)
    expect(problems('q(`/* effectively-once:x */ ${body}`)')).toHaveLength(1)
    expect(problems('q(`insert into ${table} values (1)`)')).toHaveLength(1)
    expect(problems('q(`set search_path = ${name}`)')).toHaveLength(1)
    expect(problems('q(`notify ${channel}`)')).toHaveLength(1)
    expect(problems('q(`select 1 from t order by ${ok ? "a" : field}`)')).toHaveLength(1)
    expect(problems('q(`select 1 from t limit ${Number(limit)}`)')).toHaveLength(1)
  })

  test('T9: a quoted schema, constants of the file and text written in place pass', () => {
    expect(problems('const columns = "a, b"\nq(`select ${columns} from ${schema}.t where id = $1`)')).toEqual([])
    expect(problems('const many = types.map((t) => `$1::${t}`).join()\nq(`select 1 from ${many}`)')).toEqual([])
    expect(problems('const name = process.env.TABLE\nq(`select 1 from ${name}`)')).toHaveLength(1)
    expect(problems('q(`create schema ${quoted(name)}`)')).toEqual([])
    expect(problems('q(`select 1 from ${this.#schema}.t order by ${up ? "a" : "b"}`)')).toEqual([])
    expect(problems('const insert = `insert into ${schema}.t`\nq(`${insert} values ($1)`)')).toEqual([])
    expect(problems('throw new Error(`update failed for ${name}: select another`)')).toEqual([])
  })

  test('T9: a function that puts text together passes when every call gives it text, and fails when one does not', () => {
    const tag = 'const tag = (name: string) => `/* effectively-once:${name} */`\n'
    expect(problems(`${tag}q(\`\${tag('x.y')} select 1 from t\`)`)).toEqual([])
    expect(problems(`${tag}q(\`\${tag(name)} select 1 from t\`)`)).toHaveLength(2)
    expect(problems(`${tag}q(\`\${tag('x')} select 1 from t\`)\nlist.map(tag)`)).toHaveLength(2)
    const from = "const from = (t: string, end = '') => columns.replaceAll(/x/g, `${t}.x`) + end\nconst columns = 'x'\n"
    expect(problems(`${from}q(\`select \${from('o')} from o\`)`)).toEqual([])
    expect(problems(`${from}q(\`select \${from(table)} from o\`)`)).toHaveLength(1)
    const at = 'const at = (n: number) => `id = $${n} and owner = $${n + 1}`\n'
    expect(problems(`${at}q(\`select 1 from t where \${at(1)}\`)`)).toEqual([])
    expect(problems(`${at}q(\`select 1 from t where \${at(id)}\`)`)).toHaveLength(1)
  })

  test('T9: an exception needs a reason on the line above', () => {
    expect(problems("// sql-built: the statement is the user's own\nq(`with w as (${user.text}) select 1`)")).toEqual(
      [],
    )
    expect(problems('// sql-built:\nq(`with w as (${user.text}) select 1`)')).toHaveLength(1)
  })

  test('T9: a migration that makes an object outside of :schema is found', () => {
    const header = '-- 0001_a.sql (postgres)\n-- why:        x.\n-- lock:       none.\n-- compatible: yes.\n'
    expect(migrationProblems('0001_a.sql', `${header}create table :schema.a (id int);`)).toEqual([])
    expect(migrationProblems('0001_a.sql', `${header}create table a (id int);`)).toEqual([
      '0001_a.sql: a is not made in :schema',
    ])
    expect(migrationProblems('0001_a.sql', `${header}create or replace function public.f() returns int`)).toHaveLength(
      1,
    )
    expect(migrationProblems('0001_a.sql', 'create table :schema.a (id int);')).toHaveLength(1)
  })
})
