// Live counters, read from the state of the job over HTTP. Nothing is polled: the server pushes what an epoch changed.
//
// ?api=http://localhost:8399 says where the job is served, ?tweet=tweet-7 which tweet to look at.

const asked = new URLSearchParams(location.search);
const job = `${asked.get("api") ?? "http://localhost:8399"}/v1/jobs/impressions`;
const SHOWN = 10;
const WINDOWS = 24;
const AGAIN_MS = 1000;

const views = new Map(); // tweet → views
const byId = (id) => document.getElementById(id);
let epoch = 0;
let changed = new Set(); // tweets that changed since all were read the last time
let followed = null; // ends the stream of changes of one tweet
let drawing = 0; // answers may overtake each other; the last question counts

/** Every tweet there is, a page of keys after the other. What changes meanwhile is newer than what is read. */
async function readAll() {
  const since = (changed = new Set());
  const found = new Map();
  let after = "0";
  while (after !== null) {
    const answer = await fetch(`${job}/state/totals?limit=1000&after=${after}`);
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    const page = await answer.json();
    for (const { key, value } of page.entries) found.set(key, value.views);
    after = page.next;
  }
  if (since !== changed) return; // it is being read again
  for (const tweet of [...views.keys()]) if (!found.has(tweet) && !since.has(tweet)) views.delete(tweet);
  for (const [tweet, count] of found) if (!since.has(tweet)) views.set(tweet, count);
}

/**
 * A stream of changes that goes on whatever happens. EventSource tries again by itself when its connection is lost, but
 * never again when it was answered with an error, as by a server that waits for the first epoch of its job.
 */
function follow(what, listeners) {
  let source = null;
  let again = 0;
  function begin() {
    source = new EventSource(`${job}/changes?${what}`);
    for (const [name, listener] of Object.entries(listeners)) source.addEventListener(name, listener);
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) again = setTimeout(begin, AGAIN_MS);
    });
  }
  begin();
  return () => {
    clearTimeout(again);
    source.close();
  };
}

/** Follows all tweets: each event is a key and its new value; `epoch` says that all of an epoch has come. */
function followAll() {
  follow("state=totals", {
    change: (event) => {
      const { key, value } = JSON.parse(event.data);
      changed.add(key);
      if (value === null) views.delete(key);
      else views.set(key, value.views);
    },
    epoch: (event) => {
      epoch = JSON.parse(event.data).epoch;
      draw();
      drawRecent();
    },
    reset: () => readAll().then(draw, fail),
    error: () => fail("the server is away; trying again"),
    // The first read begins when the stream is open, so nothing that changes in between is missed.
    open: () => readAll().then(draw, fail),
  });
}

/** Follows one tweet by its key: its value comes at once, and then whenever it changes. */
function followOne(tweet) {
  followed?.();
  byId("views").textContent = "–";
  followed = follow(`state=totals&key=${encodeURIComponent(tweet)}`, {
    change: (event) => {
      const { value } = JSON.parse(event.data);
      byId("views").textContent = value === null ? "no" : value.views.toLocaleString("en");
    },
  });
  drawRecent();
}

function draw() {
  const top = [...views].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0])).slice(0, SHOWN);
  const most = top.length ? top[0][1] : 1;
  byId("top").replaceChildren(...top.map(([tweet, count]) => row(tweet, count, count / most)));
  byId("tweets").textContent = views.size.toLocaleString("en");
  byId("sum").textContent = [...views.values()].reduce((a, b) => a + b, 0).toLocaleString("en");
  byId("status").textContent = `epoch ${epoch}, live`;
}

function row(tweet, count, share) {
  const line = document.createElement("tr");
  const bar = document.createElement("span");
  bar.className = "bar";
  bar.style.width = `${100 * share}%`;
  line.append(cell(tweet), cell(count.toLocaleString("en"), "number"), cell(bar));
  line.addEventListener("click", () => choose(tweet));
  return line;
}

function cell(content, kind = "") {
  const made = document.createElement("td");
  made.className = kind;
  made.append(content);
  return made;
}

/** The windows of one tweet that are kept, as bars. */
async function drawRecent() {
  const mine = ++drawing;
  const tweet = byId("tweet").value;
  const answer = await fetch(`${job}/state/recent/${encodeURIComponent(tweet)}/windows`).catch(() => null);
  const windows = answer?.ok ? (await answer.json()).slice(-WINDOWS) : [];
  if (mine !== drawing) return;
  const most = Math.max(1, ...windows.map((window) => window.value.views));
  byId("recent").replaceChildren(...windows.map((window, place) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = Math.max(1, (60 * window.value.views) / most);
    for (const [name, value] of Object.entries({ x: place * 10, y: 60 - height, width: 8, height })) {
      bar.setAttribute(name, value);
    }
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = `${window.start}: ${window.value.views} views`;
    bar.append(title);
    return bar;
  }));
}

function choose(tweet) {
  byId("tweet").value = tweet;
  followOne(tweet);
}

function fail(why) {
  byId("status").textContent = String(why);
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  followOne(byId("tweet").value);
});
byId("tweet").value = asked.get("tweet") ?? byId("tweet").value;
followAll();
followOne(byId("tweet").value);
