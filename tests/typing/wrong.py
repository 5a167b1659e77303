"""What type checkers have to refuse: each line here is an error, or the marker beside it is one."""

import headrace as hr


class Tx(hr.Record):
    card: str
    at: hr.Timestamp
    cents: int = 0


class Alert(hr.Record):
    card: str


class Fraud(hr.Process[Tx, Alert, str]):
    small: hr.ValueState[bool]


app = hr.App("fraud")
tx = app.read("tx", hr.source.items([]), Tx, time=Tx.at)
alerts = app.read("alerts", hr.source.items([]), Alert)

hr.field("card")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
hr.timestamp("2024-01-01") + 60  # type: ignore[operator] # pyright: ignore[reportOperatorIssue]
hr.timestamp("2024-01-01") + hr.timestamp("2024-01-01")  # type: ignore[operator] # pyright: ignore[reportOperatorIssue]
Tx("c", 5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
Tx("c")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
Tx("c", hr.Timestamp(5)).cents = 3  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
tx.process(Fraud())  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
tx.window("1h")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
tx.key_by(Tx.card).window(hr.tumbling("1h"), fire="1s")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
tx.key_by(Tx.card).window(hr.tumbling("1h")).process(Fraud())  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
tx.union(alerts)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
alerts.key_by(Alert.card).process(Fraud())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
tx.key_by(Tx.cents).process(Fraud())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
tx.key_by(Tx.card).join(alerts.key_by(Alert.card), within="1h")  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
tx.key_by(Tx.cents).join(tx.key_by(Tx.at), within=None)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
tx.key_by(Tx.card).join(alerts, within=None)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType]
tx.map(lambda t: t.crad, output=str)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownLambdaType]
Fraud().small.set("yes")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
tx.map_async(lambda t: t.cents, output=int)  # type: ignore[arg-type,return-value] # pyright: ignore[reportCallIssue, reportArgumentType]
app.run(until="tomorrow")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
