package main

import (
	"fmt"
	"testing"
)

func TestSlowest(t *testing.T) {
	all := []timed{{test{"p", "TestFast"}, 9.9}, {test{"p", "TestA"}, 20}, {test{"p", "TestA/sub"}, 19}, {test{"q", "TestB"}, 30}}
	if got, want := fmt.Sprint(slowest(all)), "[{{q TestB} 30} {{p TestA} 20}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for range shown {
		all = append(all, timed{test{"p", "TestC"}, 11})
	}
	if got := len(slowest(all)); got != shown {
		t.Errorf("%d tests are listed, want %d", got, shown)
	}
}
