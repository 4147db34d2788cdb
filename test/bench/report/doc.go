// Package report stores the results of benchmarks. A benchmark measures Fairlead and a peer alternately, and calls
//
//	report.Add(b, report.Result{Group: "CNI", Name: "ADD, one at a time", Unit: "ms", Ours: ours, Peer: theirs,
//		Against: "bridge + host-local", Target: report.AtMost(0.6)})
//
// for each row of the table, and
//
//	report.AddCurve(b, report.Curve{Name: "agent memory", X: "Nodes", Y: "MiB",
//		Lines: []report.Line{{Name: "RSS", Points: points}}})
//
// for each plot. Both go to out/bench/results.json of the working copy, or to that file in the directory that
// FAIRLEAD_BENCH_OUT names: an existing name is replaced, so any benchmark may be run again alone. No number is a
// failure. "go run ./test/bench/table" prints the table and draws the plots beside that file.
package report
