size(arr)
cardinality(mp)
array_size(tags)
size(mp)
size(arr) = 0 OR arr[0] IS NULL
get(arr, 1)
get(arr, -1)
get(arr, k)
get(tags, 0)
CASE WHEN size(arr) > 0 THEN arr[0] END
CASE WHEN size(arr) > 0 THEN element_at(arr, -1) END
array_contains(arr, 1)
array_contains(arr, k)
array_contains(arr, 1.0)
array_contains(tags, 'a')
array_contains(tags, s)
mp['a']
mp['nothing']
mp[s]
mp.a
element_at(mp, 'k')
element_at(mp, u)
map_contains_key(mp, 'a')
map_contains_key(mp, u)
coalesce(mp['a'], 0) + 1
st.a
st.Name
st.name
ST.A
st['a']
st.in.z
st.a + 1
upper(st.Name)
st.in.z > 1
st IS NULL
st.in IS NULL
arr IS NOT NULL
array(1, 2, 3)
array(n, k)
array(1, 2.5)
array(s, 'x')
array(n, x)[1]
arr
tags
at
bin
