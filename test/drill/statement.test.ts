import { expect, test } from 'vitest'
import { lasts, ownName, statementLabel } from '../../src/drill/wire/statement.ts'

test.each([
  ['BEGIN ISOLATION LEVEL SERIALIZABLE', 'BEGIN'],
  ['start transaction', 'BEGIN'],
  ['commit', 'COMMIT'],
  ['rollback', 'ROLLBACK'],
  ['savepoint "s1"', 'savepoint s1'],
  ['rollback to savepoint s1', 'rollback to'],
  ['/* a note */ INSERT INTO "public"."orders" (a) VALUES (\'x; y\')', 'insert into public.orders'],
  ['select * from users where id = 7 for update', 'select from users for update'],
  ['select pg_notify($1, $2)', 'select pg_notify'],
  ['update only jobs set state = $1', 'update jobs'],
  ['with made as (insert into a values (1) returning b) update c set d = 1', 'insert into a'],
  ['begin; select 1', 'BEGIN; select 1'],
  ['', 'empty statement'],
])('the name of %j is %j', (text, label) => {
  expect(statementLabel(text)).toBe(label)
})

test('a statement calls itself by the first comment that is one word', () => {
  expect(ownName('/* shop:orders.add */ insert into orders values (1) /* other */')).toBe('shop:orders.add')
  expect(ownName('/* a note */ select 1')).toBeUndefined()
})

test.each([
  ['INSERT 0 1', 'insert into a values (1)', true],
  ['INSERT 0 0', 'insert into a values (1) on conflict do nothing', false],
  ['UPDATE 2', 'update a set b = 1', true],
  ['SELECT 1', 'select count(*) from a where b in (1, 2)', false],
  ['SELECT 1', 'select nextval($1)', true],
  ['COMMIT', 'commit', true],
  ['ROLLBACK', 'commit', false],
  ['SET', 'set time zone utc', false],
  ['CREATE TABLE', 'create table a (b int)', true],
])('%j of %j lasts: %j', (tag, text, expected) => {
  expect(lasts(tag, text)).toBe(expected)
})
