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
// for each plot. Both are stored in out/bench/results.json of the working copy, or in the directory FAIRLEAD_BENCH_OUT:
// an existing name is replaced, so any benchmark may be repeated alone. No number is a failure. "go run
// ./test/bench/table" prints the table and draws the plots beside that file.
package report
