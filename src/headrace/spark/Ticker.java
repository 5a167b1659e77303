import java.util.Collections;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.catalyst.streaming.UserProvided;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.streaming.runtime.MemoryStreamInputPartition;
import org.apache.spark.sql.execution.streaming.runtime.MemoryStreamReaderFactory$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The ticker's half in the driver's JVM; ticker.py says what it is for, compiles it and sets its tick.
 *
 * Executors know nothing of this class: what travels to them are Spark's own partitions, which bring their rows.
 */
public class Ticker implements SupportsRead {
  private final StructType columns;
  private volatile Tick tick = null;

  public Ticker(String ddl) {
    this.columns = StructType.fromDDL(ddl);
  }

  /** When the job needs an epoch without data: the same fields as those of model/order.py. */
  public static class Tick {
    final long seq;
    final long dueUs;
    final boolean last;
    final int loops;

    Tick(long seq, long dueUs, boolean last, int loops) {
      this.seq = seq;
      this.dueUs = dueUs;
      this.last = last;
      this.loops = loops;
    }
  }

  /** What holds from now on. dueUs: the greatest number if nothing is due. */
  public void set(long seq, long dueUs, boolean last, int loops) {
    this.tick = new Tick(seq, dueUs, last, loops);
  }

  /** A streaming table, known to Spark's log by this name. */
  public Dataset frame(SparkSession session, String source) {
    scala.Option none = scala.Option.empty();
    return Dataset.ofRows(session, new StreamingRelationV2(
        none, this.name(), this, CaseInsensitiveStringMap.empty(),
        DataTypeUtils$.MODULE$.toAttributes(this.columns), none, none, none, new UserProvided(source)));
  }

  public String name() {
    return "headrace_ticker";
  }

  public StructType schema() {
    return this.columns;
  }

  public Set capabilities() {
    return Collections.singleton(TableCapability.MICRO_BATCH_READ);
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new Read(this);
  }

  public static class Read implements ScanBuilder, Scan {
    private final Ticker ticker;

    Read(Ticker ticker) {
      this.ticker = ticker;
    }

    public Scan build() {
      return this;
    }

    public StructType readSchema() {
      return this.ticker.columns;
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new Ticks(this.ticker);
    }
  }

  /** What the log keeps: {"seq": 5, "final": true, "loops": 3}; the last two only where they say something. */
  public static class Reached extends Offset {
    private static final Pattern SEQ = Pattern.compile("\"seq\"\\s*:\\s*(\\d+)");
    private static final Pattern LOOPS = Pattern.compile("\"loops\"\\s*:\\s*(\\d+)");
    private static final Pattern LAST = Pattern.compile("\"final\"\\s*:\\s*true");
    final long seq;
    final boolean last;
    final int loops;

    public Reached(long seq, boolean last, int loops) {
      this.seq = seq;
      this.last = last;
      this.loops = loops;
    }

    static Reached parse(String json) {
      Matcher seq = SEQ.matcher(json);
      Matcher loops = LOOPS.matcher(json);
      if (!seq.find()) throw new IllegalArgumentException("an offset of the ticker without its number: " + json);
      return new Reached(
          Long.parseLong(seq.group(1)), LAST.matcher(json).find(),
          loops.find() ? Integer.parseInt(loops.group(1)) : 0);
    }

    public String json() {
      return "{\"seq\": " + this.seq + (this.last ? ", \"final\": true" : "")
          + (this.loops > 0 ? ", \"loops\": " + this.loops : "") + "}";
    }
  }

  public static class Ticks implements MicroBatchStream, SupportsTriggerAvailableNow {
    private final Ticker ticker;
    private boolean bounded = false;
    private boolean woken = false;

    Ticks(Ticker ticker) {
      this.ticker = ticker;
    }

    public Offset initialOffset() {
      return new Reached(0, false, 0);
    }

    public Offset deserializeOffset(String json) {
      return Reached.parse(json);
    }

    public void prepareForTriggerAvailableNow() {
      this.bounded = true;
    }

    public Offset latestOffset() {
      throw new UnsupportedOperationException("Spark asks with an offset");
    }

    public Offset latestOffset(Offset at, ReadLimit limit) {
      Tick tick = this.ticker.tick;
      if (tick == null) return at;
      Reached start = Reached.parse(at.json());
      boolean isNew = tick.seq > start.seq;
      if (tick.last && (!start.last || (isNew && tick.loops > 0))) {
        return new Reached(Math.max(tick.seq, start.seq), true, tick.loops);
      }
      boolean due = tick.dueUs <= System.currentTimeMillis() * 1000;
      // What is overdue when a bounded run begins belongs to it; what becomes due meanwhile would keep it from ending.
      boolean timed = due && !(this.bounded && this.woken);
      this.woken = true;
      return isNew && (timed || tick.loops > 0) ? new Reached(tick.seq, start.last, tick.loops) : at;
    }

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
      int shares = Reached.parse(end.json()).loops;
      InputPartition[] partitions = new InputPartition[shares];
      for (int share = 0; share < shares; share++) {
        UnsafeRowWriter row = new UnsafeRowWriter(2);
        row.reset();
        row.zeroOutNullBytes();
        row.write(0, share);
        row.write(1, shares);
        partitions[share] = new MemoryStreamInputPartition(new UnsafeRow[] {row.getRow()});
      }
      return partitions;
    }

    public PartitionReaderFactory createReaderFactory() {
      return MemoryStreamReaderFactory$.MODULE$;
    }

    public void commit(Offset end) {
    }

    public void stop() {
    }

    public String toString() {
      return this.ticker.name();
    }
  }
}
