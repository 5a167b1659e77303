// Asks a server with both of Node's clients and prints what they said, as JSON. Arguments: port.
const { createClient } = require("redis");
const Redis = require("ioredis");

const port = Number(process.argv[2]);

async function askRedis(RESP) {
  const client = await createClient({ url: `redis://127.0.0.1:${port}`, RESP }).connect();
  const listener = await client.duplicate().connect();
  await listener.subscribe("count.views:a", () => {});
  const said = {
    ping: await client.ping(),
    get: await client.get("count.views:a"),
    none: await client.get("count.views:none"),
    mget: await client.mGet(["count.views:a", "count.views:b"]),
    hash: { ...(await client.hGetAll("fraud.shops:c1")) },
    list: await client.lRange("fraud.recent:c1", 0, -1),
    type: await client.type("fraud.shops:c1"),
    keys: (await client.keys("count.views:*")).sort(),
    refused: await client.set("count.views:a", "2").catch((error) => error.message),
    multi: await client.multi().get("count.views:a").get("count.views:b").exec(),
    epoch: await client.sendCommand(["HEADRACE.EPOCH"]),
  };
  const scanned = [];
  for await (const page of client.scanIterator({ MATCH: "fraud.*" })) scanned.push(...[page].flat());
  said.scan = scanned.sort();
  await listener.unsubscribe();
  listener.destroy();
  await client.close();
  return said;
}

async function askIoredis() {
  const client = new Redis({ port, lazyConnect: true });
  await client.connect();
  const said = {
    get: await client.get("count.views:a"),
    hash: await client.hgetall("fraud.shops:c1"),
    pipeline: (await client.pipeline().get("count.views:a").llen("fraud.recent:c1").exec()).map(([, value]) => value),
    refused: await client.set("count.views:a", "2").catch((error) => error.message),
  };
  client.disconnect();
  return said;
}

(async () => {
  const said = { resp2: await askRedis(2), resp3: await askRedis(3), ioredis: await askIoredis() };
  console.log(JSON.stringify(said));
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
