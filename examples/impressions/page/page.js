// Live counters, read from the state of the job over HTTP. Nothing is polled: the server pushes what an epoch changed.
//
// ?api=http://localhost:8399 says where the job is served, ?tweet=tweet-7 which tweet to look at.

const asked = new URLSearchParams(location.search);
const job = `${asked.get("api") ?? "http://localhost:8399"}/v1/jobs/impressions`;
const SHOWN = 10;
const WINDOWS = 24;

const views = new Map(); // tweet → views
const byId = (id) => document.getElementById(id);
let epoch = 0;
let followed = null; // the stream of changes of one tweet
let drawing = 0; // answers may overtake each other; the last question counts

/** Every tweet there is, a page of keys after the other. */
async function readAll() {
  let after = "0";
  while (after !== null) {
    const answer = await fetch(`${job}/state/totals?limit=1000&after=${after}`);
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    const page = await answer.json();
    for (const { key, value } of page.entries) views.set(key, value.views);
    after = page.next;
  }
}

/** Follows all tweets: each event is a key and its new value; `epoch` says that all of an epoch has come. */
function followAll() {
  const changes = new EventSource(`${job}/changes?state=totals`);
  changes.addEventListener("change", (event) => {
    const { key, value } = JSON.parse(event.data);
    if (value === null) views.delete(key);
    else views.set(key, value.views);
  });
  changes.addEventListener("epoch", (event) => {
    epoch = JSON.parse(event.data).epoch;
    draw();
    drawRecent();
  });
  changes.addEventListener("reset", () => {
    views.clear();
    readAll().then(draw, fail);
  });
  changes.addEventListener("error", () => fail("the server is away; trying again"));
  // The first read begins when the stream is open, so nothing that changes in between is missed.
  changes.addEventListener("open", () => readAll().then(draw, fail));
}

/** Follows one tweet by its key: its value comes at once, and then whenever it changes. */
function followOne(tweet) {
  followed?.close();
  byId("views").textContent = "–";
  followed = new EventSource(`${job}/changes?state=totals&key=${encodeURIComponent(tweet)}`);
  followed.addEventListener("change", (event) => {
    const { value } = JSON.parse(event.data);
    byId("views").textContent = value === null ? "no" : value.views.toLocaleString("en");
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
