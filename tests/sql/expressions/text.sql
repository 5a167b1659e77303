length(s)
length(bin)
char_length(u)
length(n)
upper(s)
lower(s)
ucase(u)
lcase(s)
upper(n)
substring(s, 2)
substring(s, 2, 2)
substring(s, -2)
substring(s, -2, 1)
substring(s, 0, 2)
substring(s, -10, 9)
substring(s, 2, -1)
substring(s, n, 3)
substr(s, 1, k)
substring(s FROM 2 FOR 3)
left(s, 2)
left(s, -1)
right(s, 2)
right(s, 100)
right(s, 0)
trim(s)
ltrim(s)
rtrim(s)
btrim(s)
trim(BOTH 'a ' FROM s)
trim(LEADING 'f' FROM s)
trim(TRAILING FROM s)
trim('abc' FROM s)
ltrim('a', s)
rtrim('c', s)
btrim(s, 'ac')
trim(u, s)
s || u
s || '-' || n
s || x || b || d
concat(s, u)
concat(s, n, 'x')
concat(bin, X'00')
concat(s)
concat_ws('-', s, u)
concat_ws(',', s, NULL, n)
concat_ws(u, s, 'x')
replace(s, 'a', 'X')
replace(s, 'b')
replace(s, u, '_')
replace(s, '', 'x')
startswith(s, 'a')
startswith(s, u)
endswith(s, 'c')
endswith(s, u)
contains(s, 'b')
contains(s, u)
contains(s, '')
s LIKE 'a%'
s LIKE '%c'
s LIKE '%b%'
s LIKE 'abc'
s LIKE 'a_c'
s LIKE '%'
s LIKE ''
s LIKE '%line'
s LIKE 'new%line'
s NOT LIKE 'a%'
s LIKE '%\\%\\_\\\\%'
s LIKE '%/%/_%' ESCAPE '/'
s LIKE '%😀%'
s ILIKE 'AB%'
s NOT ILIKE '%E'
n LIKE '1%'
s RLIKE '^a'
s RLIKE 'b|o'
s RLIKE '[0-9]+'
s RLIKE '\\d+'
s RLIKE '\\w\\s'
s RLIKE 'e$'
s RLIKE 'w.l'
s RLIKE '^.+$'
s RLIKE '(?:a|f)(b|o)'
s RLIKE '\\p{Upper}{2}'
s RLIKE '[^a-z]'
s RLIKE ''
NOT s RLIKE 'a'
regexp_like(s, 'a.c')
regexp_extract(s, '([a-z]+)([0-9]+)', 1)
regexp_extract(s, '([a-z]+)([0-9]+)', 2)
regexp_extract(s, '([a-z]+)([0-9]+)')
regexp_extract(s, '(x)?b', 1)
regexp_extract(s, '[a-c]+', 0)
regexp_replace(s, '[aeiou]', '*')
regexp_replace(s, '([a-z])([0-9])', '$2$1')
regexp_replace(u, 'b*', '-') IS NULL
regexp_replace(s, 'a', '\\$1')
split(s, ',')
split(s, '')
split(s, ',', 2)
split(s, '[o,]')
split(s, '\\s')
split(replace(s, '😀', ''), 'x*')
split(s, ',')[0]
element_at(split(s, 'b'), 1)
size(split(s, ','))
split(s, 'b,')
split(u, ',')
split_part(s, ',', 1)
split_part(s, ',', 2)
split_part(s, ',', -1)
split_part(s, ',', 9)
split_part(s, ',', -9)
split_part(s, '', 1)
split_part(s, u, 1)
split_part(s, ',', CAST(k AS INT))
replace(s, ',', '')
replace(s, 'b', NULL)
regexp_extract(s, '(,|^)([^,]*)', 2)
regexp_extract(s, '(?:a|b)+?(c)?', 1)
regexp_extract(s, 'a(?=b)', 0)
regexp_extract(s, '[a-c]*+d?', 0)
s RLIKE '(?=b)'
s RLIKE 'a++'
s RLIKE '(,|^)b'
lpad(s, 5, 'xy')
lpad(s, 2)
lpad(s, 10)
lpad(s, 5, '')
lpad(s, -1, 'x')
rpad(s, 6, '😀')
rpad(s, 3, u)
lpad(n, 8, '0')
instr(s, 'b')
instr(s, u)
instr(s, '')
locate('b', s)
locate('o', s, 3)
locate('', s)
locate('b', s, 0)
position('b' IN s)
position('b', s)
repeat(s, 2)
repeat(s, -1)
reverse(s)
'it''s'
'tab\tnew\nline\\'
'\u0041\101\%\_\q'
"double ""quoted"" 'x'"
r'raw\d'
'a' 'b'
X'1F'
'😀'
